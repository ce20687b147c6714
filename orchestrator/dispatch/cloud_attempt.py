"""One try at one endpoint: what it sent, what it cost, how long it took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from orchestrator.dispatch.choosing import CloudRoute
from orchestrator.dispatch.cloud_http import Ask, EndpointClient
from orchestrator.dispatch.cloud_wire import ChunkReader
from orchestrator.dispatch.counting import AnswerCount, Counted, prompt_bounds
from orchestrator.dispatch.faults import EndpointFault, FaultKind
from orchestrator.dispatch.outbound import OutboundPass
from orchestrator.dispatch.spending import Allowance
from shoal.openai.tier_use import TierUse
from shoal.v1 import inference_pb2 as pb

_NO_DEADLINE_S = 24 * 3600.0
# Whatever else an endpoint calls the end of its answer is `stop`; without a name it was cut.
_REASONS = {
    "": pb.Finished.REASON_LENGTH,
    "length": pb.Finished.REASON_LENGTH,
    "content_filter": pb.Finished.REASON_CONTENT_FILTER,
}


class Clocks(Protocol):
    """Time, passed in."""

    @property
    def monotonic(self) -> Callable[[], float]:
        """Seconds that only grow."""
        ...

    @property
    def unix(self) -> Callable[[], float]:
        """Seconds since 1970."""
        ...


class CloudAttempt:
    """Runs once; `use` is true at any time, also after a failure or in the middle."""

    def __init__(
        self,
        route: CloudRoute,
        outbound: OutboundPass,
        allowance: Allowance,
        clocks: Clocks,
        put: Callable[[pb.Delta], None],
    ) -> None:
        self._route = route
        self._outbound = outbound
        self._max_tokens = allowance.max_tokens
        self._clocks = clocks
        self._put = put
        self._prompt = prompt_bounds(outbound.request)
        self._count = AnswerCount(allowance.max_tokens)
        self._reader = ChunkReader(route.endpoint.name)
        self._first_s: float | None = None
        # What a failure leaves open is charged as if the endpoint had worked for it.
        self._billed = True

    @property
    def num_deltas(self) -> int:
        """Pieces of text that have come, and gone on to the client."""
        return self._count.num_deltas

    async def run(self, client: EndpointClient) -> pb.Finished:
        """The end of the answer; raises EndpointFault."""
        started_s = self._clocks.monotonic()
        ask = Ask(self._route.model.upstream, self._max_tokens, self._limit_s())
        try:
            await client.stream(self._outbound, ask, self._take)
            if not self._reader.finish_reason and not self._count.overran:
                raise EndpointFault(FaultKind.BROKE_OFF, self._route.endpoint.name)
        except EndpointFault as fault:
            self._billed = fault.may_be_billed or self._count.num_deltas > 0
            raise
        return self._finished(started_s)

    def use(self, currency: str) -> TierUse:
        """Tokens and money of this try."""
        counted = self._counted()
        price = self._route.model.price
        tokens = (counted.prompt_tokens, counted.completion_tokens)
        cost_nanos = None if price is None else price.cost_nanos(*tokens)
        return TierUse(*tokens, cost_nanos, currency, counted.flags)

    def _take(self, chunk: object) -> bool:
        delta = self._reader.read(chunk)
        if delta is None:
            return False
        if self._first_s is None:
            self._first_s = self._clocks.monotonic()
        self._count.add(delta.text)
        if self._count.fits:
            self._put(delta)
        return self._count.overran

    def _counted(self) -> Counted:
        if not self._billed:
            return Counted(0, 0)
        return self._count.counted(self._prompt, self._reader.claimed)

    def _limit_s(self) -> float:
        deadline_unix_ms = self._outbound.request.deadline_unix_ms
        if not deadline_unix_ms:
            return _NO_DEADLINE_S
        return max(0.0, deadline_unix_ms / 1000 - self._clocks.unix())

    def _finished(self, started_s: float) -> pb.Finished:
        """The end with our own counts and times as seen from here."""
        now_s = self._clocks.monotonic()
        first_s = now_s if self._first_s is None else self._first_s
        counted = self._counted()
        tokens = counted.completion_tokens
        reason = _REASONS.get(self._reader.finish_reason, pb.Finished.REASON_STOP)
        finished = pb.Finished(
            reason=reason if self._count.fits else pb.Finished.REASON_LENGTH,
            usage=pb.Usage(prompt_tokens=counted.prompt_tokens, completion_tokens=tokens),
        )
        if self._reader.claimed is not None:
            claimed = self._reader.claimed.cached_tokens
            finished.usage.cached_tokens = min(claimed, counted.prompt_tokens)
        finished.timings.ttft_ms = (first_s - started_s) * 1000
        finished.timings.total_ms = (now_s - started_s) * 1000
        finished.timings.tpot_ms = (now_s - first_s) * 1000 / (tokens - 1) if tokens > 1 else 0.0
        return finished
