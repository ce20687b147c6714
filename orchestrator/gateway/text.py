"""What stands behind the gateway's text endpoints: keys, limits, dispatch, accounts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from orchestrator.dispatch.backend import Generation
from orchestrator.dispatch.cascade.generation import CascadeGeneration
from orchestrator.dispatch.cascade.service import Cascades, Wish
from orchestrator.dispatch.dispatcher import Dispatcher
from orchestrator.gateway.auth import Authenticator
from orchestrator.gateway.cloud_records import CloudRecords, CloudSequence
from orchestrator.gateway.metrics import RequestMetrics
from orchestrator.gateway.rate_limits import RateLimits
from orchestrator.gateway.salt import TenantSalts
from orchestrator.gateway.state import state_calls
from shoal.errors import ShoalError
from shoal.http.admission import Admission
from shoal.http.choices import RunningChoices
from shoal.http.endpoint import Asked, TextRun
from shoal.openai.outcome import Outcome
from shoal.openai.request import TextRequest
from shoal.openai.wire import Origin, to_generate_requests


@dataclass(frozen=True, slots=True)
class GatewayText:
    """A `TextService` (`shoal.http.endpoint`) over the dispatcher."""

    authenticator: Authenticator
    admission: Admission
    rate_limits: RateLimits
    dispatcher: Dispatcher
    cascades: Cascades
    salts: TenantSalts
    cloud_records: CloudRecords
    metrics: RequestMetrics
    request_timeout_s: float

    async def tenant(self, headers: Mapping[str, str]) -> str:
        """The owner of the key; raises UNAUTHENTICATED, and NO_DEVICE without the state store."""
        with state_calls():
            return (await self.authenticator.caller(headers)).tenant

    def slot(self, tenant: str) -> AbstractContextManager[None]:
        """A place among the gateway's requests."""
        return self.admission.slot(tenant)

    def failed(self, error: ShoalError) -> None:
        """Count an answer that was an error."""
        self.metrics.failed(error)

    async def start(self, parsed: TextRequest, asked: Asked) -> TextRun:
        """Rule how far each choice may travel, count it against the limits, and dispatch it."""
        origin = Origin(
            request_id=asked.request_id,
            tenant=asked.tenant,
            tenant_salt=self.salts.salt(asked.tenant),
            deadline_unix_ms=asked.deadline_unix_ms,
        )
        messages = to_generate_requests(parsed, origin)
        cascade = self.cascades.policy(parsed.model)
        rulings = [
            await self.dispatcher.rule(message, fresh=cascade is not None) for message in messages
        ]
        grant = await self.rate_limits.admit(asked.tenant, messages)
        for message in messages:
            grant.apply(message)
        starts = list(zip(messages, rulings, strict=True))
        generations: list[Generation] = []
        try:
            for message, ruling in starts:
                if cascade is None:
                    generations.append(self.dispatcher.start(message, ruling))
                else:
                    wish = _wish(parsed)
                    generations.append(await self.cascades.start(message, ruling, wish))
        except BaseException:
            for generation in generations:
                generation.cancel()
            raise
        outcomes = [
            Outcome(message.request_id, "edge", ruling.level.value) for message, ruling in starts
        ]

        def ended(failure: ShoalError | None) -> None:
            self.rate_limits.settle(grant, outcomes)
            runs = zip(generations, outcomes, rulings, strict=True)
            for generation, outcome, ruling in runs:
                outcome.follow(generation)
                self.metrics.ended(outcome, parsed.model, failure)
                if isinstance(generation, CascadeGeneration):
                    self.cascades.ended(generation, ruling)
                account, tier = generation.account, generation.tier
                # Several worked for it, or the hub knows it by another name.
                joint = account.cascade is not None or parsed.model in self.dispatcher.drafted
                if tier == "cloud" or account.tries or joint:
                    sequence = CloudSequence(asked.tenant, parsed.model, outcome, account, tier)
                    self.cloud_records.keep(sequence, failure)

        return TextRun(RunningChoices(generations), outcomes, ended)


def _wish(parsed: TextRequest) -> Wish:
    hints = parsed.hints
    return Wish(hints.cascade_threshold, hints.cascade_delivery, parsed.stream)
