"""Models of a cloud node that devices draft for: the way out of their drafts is a pass."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from orchestrator.dispatch.backend import Account, Generation
from orchestrator.dispatch.cloud import SETTLE_WAIT_S, CloudBackend
from orchestrator.dispatch.edge import EdgeBackend
from orchestrator.dispatch.outbound import OutboundPass, checked
from orchestrator.dispatch.speculative_models import FALLBACKS, DraftedModel
from orchestrator.dispatch.spending import Allowance
from shoal.errors import Reason, ShoalError
from shoal.http.generation import failed_update
from shoal.openai.speculative import drafted_uses
from shoal.openai.tier_use import TierUse
from shoal.v1 import inference_pb2 as pb

_CLOUD = "cloud"


def by_name(models: Sequence[DraftedModel]) -> Mapping[str, DraftedModel]:
    """Drafted models by what clients ask for."""
    return {model.name: model for model in models}


def drafting_request(outbound: OutboundPass, model: DraftedModel) -> pb.GenerateRequest:
    """What a device is sent: only what a pass lets out names a verifier."""
    request = checked(outbound)
    request.model = model.draft
    request.speculation.verifier = model.verifier
    request.speculation.target = model.name
    request.speculation.fallback = FALLBACKS[model.fallback]
    request.speculation.timeout_ms = round(model.timeout_s * 1e3)
    return request


class DraftedGeneration:
    """A sequence that a device drafts; asks the gate and the budgets first, and fails as they do.

    What the node gave is counted when it ends. Of one that was cut short all that came counts
    as the node's, for only the last update tells whose tokens they were.
    """

    tier = "edge"

    def __init__(
        self,
        edge: EdgeBackend,
        cloud: CloudBackend,
        request: pb.GenerateRequest,
        model: DraftedModel,
    ) -> None:
        self.account = Account()
        self._edge = edge
        self._cloud = cloud
        self._request = request
        self._model = model
        self._opening: asyncio.Task[Generation | ShoalError] | None = None
        self._allowance: Allowance | None = None
        self._cancelled = False
        self._prompt_tokens = self._num_tokens = 0

    async def take(self) -> Sequence[pb.SequenceUpdate]:
        """See `Generation.take`."""
        if self._opening is None:
            # A task of its own: what was set aside is known also when the reader goes away.
            self._opening = asyncio.create_task(self._open())
        running = await asyncio.shield(self._opening)
        if isinstance(running, ShoalError):
            return [failed_update(self._request.request_id, running)]
        updates = await running.take()
        for update in updates:
            if update.HasField("admitted"):
                self._prompt_tokens = update.admitted.prompt_tokens
            self._num_tokens += len(update.delta.tokens)
        last = updates[-1]
        if last.HasField("finished"):
            node = drafted_uses(last.finished).get(_CLOUD, TierUse(0, 0))
            await self._settle(node.prompt_tokens, node.completion_tokens)
        elif last.HasField("failed"):
            await self._settle(self._prompt_tokens if self._num_tokens else 0, self._num_tokens)
        return updates

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._cancelled = True
        if self._opening is None or not self._opening.done():
            return
        running = self._opening.result()
        if not isinstance(running, ShoalError):
            running.cancel()
            self._begin_settling(self._prompt_tokens, self._num_tokens)

    async def _open(self) -> Generation | ShoalError:
        try:
            outbound = await self._cloud.gate.admit(self._request)
            self._allowance = await self._cloud.spending.reserve(outbound, [self._model.price])
        except ShoalError as error:
            return error
        if self._cancelled:
            self._begin_settling(0, 0)
            return ShoalError(Reason.CANCELLED, "The client went away.")
        return self._edge.start(drafting_request(outbound, self._model))

    async def _settle(self, prompt_tokens: int, completion_tokens: int) -> None:
        settling = self._begin_settling(prompt_tokens, completion_tokens)
        if settling is not None:
            await asyncio.wait({settling}, timeout=SETTLE_WAIT_S)

    def _begin_settling(
        self, prompt_tokens: int, completion_tokens: int
    ) -> asyncio.Task[None] | None:
        """Count what the node gave, once; the answer's account has it at once."""
        allowance, self._allowance = self._allowance, None
        if allowance is None:
            return None
        price, tokens = self._model.price, (prompt_tokens, completion_tokens)
        cost_nanos = None if price is None else price.cost_nanos(*tokens)
        use = TierUse(*tokens, cost_nanos, self._cloud.config.currency)
        if any(tokens):
            self.account.uses[_CLOUD] = use
        return self._cloud.in_background(self._cloud.spending.settle(allowance, use))
