"""Who computes a long prompt: the device that answers, or a faster one that passes the KV on.

The device's own estimate of fetching against recomputing (`agent/kv/policy.py`), extended to
who computes: a faster device prefills, its blocks go to the shared tier, and the one that
answers fetches them. Pure arithmetic on measured figures, kept for the decision record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from orchestrator.fleet.view import (
    DeviceId,
    DeviceState,
    DeviceView,
    FleetView,
    ServedModel,
    num_occupied,
)
from orchestrator.request import Objective, Privacy, RouteRequest
from orchestrator.routing.decision import Candidate, Decision
from orchestrator.routing.estimator import Estimator
from orchestrator.routing.prefixes import BLOCK_TOKENS, PrefixMemory, cached_tokens

# It must win by as much as a fetch must against recomputing: links swing.
MARGIN = 1.25
# Below this predicted time another hop and its fixed costs are not worth a thought.
MIN_LOCAL_MS = 500.0


@dataclass(frozen=True, slots=True)
class Side:
    """A device with the predicted time (ms) until it has the prompt computed, others' included."""

    device: DeviceView
    model: ServedModel
    prompt_ms: float

    def transfer_ms(self, num_blocks: int) -> float:
        """Time to move blocks over this device's link to the shared tier, as measured."""
        num_bytes = num_blocks * BLOCK_TOKENS * self.model.kv_bytes_per_token
        return 1000.0 * num_bytes / self.model.shared_bytes_per_s


@dataclass(frozen=True, slots=True)
class PrefillChoice:
    """The best other device and the figures that decided; times in ms.

    `rest_ms`: what the answering device still computes of the prompt.
    """

    elsewhere: bool
    device_id: DeviceId
    device_name: str
    prompt_tokens: int
    local_ms: float
    prefill_ms: float
    upload_ms: float
    fetch_ms: float
    rest_ms: float

    @property
    def shared_ms(self) -> float:
        """Until the answering device has the whole prompt, when the other one computes it."""
        return self.prefill_ms + self.upload_ms + self.fetch_ms + self.rest_ms

    def figures(self) -> dict[str, object]:
        """As in the decision record."""
        raw = asdict(self) | {"shared_ms": self.shared_ms}
        return {k: round(v, 1) if isinstance(v, float) else v for k, v in raw.items()}


def who_prefills(
    answering: Side, others: Sequence[Side], num_tokens: int, num_cached: int
) -> PrefillChoice | None:
    """Whether the best of `others` should compute the prompt; None: there is nobody to ask.

    `num_cached`: leading tokens that the answering device is likely to hold. Each of
    `others` must share the answering device's block space and have a measured link.
    """
    # The prompt's last token is always computed where it is answered.
    num_blocks = (num_tokens - 1) // BLOCK_TOKENS
    num_fetched = num_blocks - num_cached // BLOCK_TOKENS
    if num_fetched <= 0:
        return None
    rest = (num_tokens - num_blocks * BLOCK_TOKENS) / (num_tokens - num_cached)
    choices = [
        PrefillChoice(
            elsewhere=False,
            device_id=other.device.device_id,
            device_name=other.device.name,
            prompt_tokens=num_tokens,
            local_ms=answering.prompt_ms,
            prefill_ms=other.prompt_ms,
            upload_ms=other.transfer_ms(num_blocks),
            fetch_ms=answering.transfer_ms(num_fetched),
            rest_ms=rest * answering.prompt_ms,
        )
        for other in others
    ]
    if not choices:
        return None
    best = min(choices, key=lambda choice: choice.shared_ms)
    return replace(best, elsewhere=best.shared_ms * MARGIN < best.local_ms)


def consider_sharing(
    request: RouteRequest,
    decision: Decision,
    view: FleetView,
    learned: tuple[Estimator, PrefixMemory],
) -> PrefillChoice | None:
    """The choice for a request that `decision` gave to a device; None: no question.

    Asked only where the answer is wanted fast and may use the shared tier, and the prompt
    is long for the device that answers. Others are those that the decision looked at and that
    have a slot free, whatever made the router prefer the one that answers.
    """
    chosen = decision.chosen
    if chosen is None or chosen.prediction is None:
        return None
    if request.privacy is Privacy.LOCAL_ONLY or request.objective is not Objective.LATENCY:
        return None
    prediction = chosen.prediction
    prompt_ms = prediction.ttft_ms - prediction.tpot_ms
    answering = _side(view.devices.get(chosen.device_id), request.model, prompt_ms)
    if answering is None or prompt_ms < MIN_LOCAL_MS:
        return None
    estimator, prefixes = learned
    now_ms = float(decision.decided_unix_ms)
    expected = estimator.expect(request, now_ms)
    held_bytes = prefixes.cached_bytes(request.model, request.prefix_hints, now_ms)

    def other(candidate: Candidate) -> Side | None:
        side = _side(view.devices.get(candidate.device_id), request.model, 0.0)
        if side is None or side.model.block_space != answering.model.block_space:
            return None
        held = cached_tokens(
            held_bytes.get(candidate.device_id, 0), request.prompt_bytes, expected.prompt_tokens
        )
        standing = estimator.look(side.device, side.model, num_occupied(side.device, side.model))
        ttft_ms, tpot_ms, *_ = estimator.figures(expected, standing, held)
        return Side(side.device, side.model, ttft_ms - tpot_ms)

    others = [
        side
        for candidate in decision.candidates
        if candidate.device_id != chosen.device_id and (side := other(candidate)) is not None
    ]
    return who_prefills(answering, others, expected.prompt_tokens, prediction.cached_tokens)


def _side(device: DeviceView | None, model_name: str, prompt_ms: float) -> Side | None:
    """The device, if it is there, has a free slot, and a measured way to the shared tier."""
    model = None if device is None else device.models.get(model_name)
    if device is None or model is None or not model.ready:
        return None
    if device.state is not DeviceState.READY or num_occupied(device, model) >= model.slots:
        return None
    if not model.block_space or model.shared_bytes_per_s <= 0:
        return None
    return Side(device, model, prompt_ms)
