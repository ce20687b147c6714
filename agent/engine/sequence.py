"""One running generation: what it has computed, said and cost."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from agent.engine.detokenizer import Detokenizer
from agent.engine.output import Finished, FinishReason, SampledToken, Timings
from agent.engine.request import GenerationRequest
from agent.engine.runner import Sampler
from agent.engine.stops import StopMatcher


class Phase(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    RESTORING = "restoring"  # without a slot: its prefix is on its way
    PARKED = "parked"  # preempted: its KV is in the host tier, its sampler here
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


class Sequence:
    """The mutable state of one request in the engine. Times are monotonic seconds."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.phase = Phase.WAITING
        self.slot: int | None = None
        # Tokens whose K and V are in the slot; the prompt's first, then generated ones.
        self.num_computed = 0
        # Computed tokens from which on it may be preempted (again).
        self.parkable_from = 0
        # While it is parked: its sampler, and since when.
        self.sampler: Sampler | None = None
        self.parked_s: float | None = None
        # For how long it was parked, before and after its first token.
        self._parked_before_s = 0.0
        self._parked_after_s = 0.0
        self.cached_by_tier: Mapping[str, int] = {}
        self.kv_decision = ""
        self.kv_restore_ms: Mapping[str, float] = {}
        self.generated: list[int] = []
        self.detokenizer = Detokenizer(StopMatcher(request.stop))
        self.started_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.decode_steps = 0
        self.batch_sum = 0
        self.compute_s = 0.0
        # What the engine had computed when the request came.
        self.busy_before_s = 0.0

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def held_slot(self) -> int:
        """The slot of a sequence that must hold one."""
        if self.slot is None:
            raise AssertionError("a running sequence holds a slot")
        return self.slot

    @property
    def remaining_prefill(self) -> int:
        """Prompt tokens that still have to be computed."""
        return max(0, self.num_prompt - self.num_computed)

    @property
    def computed_tokens(self) -> tuple[int, ...]:
        """The tokens whose K and V are in the slot."""
        return (*self.request.prompt, *self.generated)[: self.num_computed]

    @property
    def last_token(self) -> int:
        """The newest token, which is not yet in the KV while the sequence decodes."""
        return self.generated[-1]

    def count_token(self, sampled: SampledToken, now_s: float) -> None:
        """Record a generated token."""
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.last_token_s = now_s
        self.generated.append(sampled.token)

    def resumed(self, now_s: float) -> None:
        """Record that it holds a slot again."""
        if self.parked_s is None:
            return
        if self.first_token_s is None:
            self._parked_before_s += now_s - self.parked_s
        else:
            self._parked_after_s += now_s - self.parked_s
        self.parked_s = None

    def finished(self, reason: FinishReason, now_s: float, busy_s: float = 0.0) -> Finished:
        """The summary of a generation that ended at `now_s`.

        `busy_s`: seconds that the engine has computed since its start.
        """
        return Finished(
            reason=reason,
            prompt_tokens=self.num_prompt,
            completion_tokens=len(self.generated),
            cached_tokens_by_tier=self.cached_by_tier,
            timings=self._timings(now_s, busy_s),
        )

    def _timings(self, now_s: float, busy_s: float) -> Timings:
        arrived = self.request.arrived_s
        started = self.started_s if self.started_s is not None else now_s
        first = self.first_token_s if self.first_token_s is not None else now_s
        last = self.last_token_s if self.last_token_s is not None else first
        later_tokens = len(self.generated) - 1
        # Being parked is waiting: speeds are learned from the rest.
        decoding_s = last - first - self._parked_after_s
        return Timings(
            queue_ms=(started - arrived + self._parked_before_s) * 1e3,
            prefill_ms=(first - started - self._parked_before_s) * 1e3,
            ttft_ms=(first - arrived) * 1e3,
            tpot_ms=decoding_s * 1e3 / later_tokens if later_tokens > 0 else 0.0,
            total_ms=(now_s - arrived) * 1e3,
            mean_batch=round(self.batch_sum / self.decode_steps) if self.decode_steps else 0,
            kv_decision=self.kv_decision,
            kv_restore_ms=self.kv_restore_ms,
            compute_ms=self.compute_s * 1e3,
            busy_ms=max(0.0, busy_s - self.busy_before_s) * 1e3,
        )
