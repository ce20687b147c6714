"""Predicted TTFT, TPOT and joules of a request on a device, learned from outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.fleet.view import DeviceId, DeviceView, ServedModel, num_occupied
from orchestrator.request import RouteRequest
from orchestrator.routing import speed
from orchestrator.routing.decision import Prediction
from orchestrator.routing.learned import Learned
from orchestrator.routing.learning import LearnedLine, LearnedQuotient, LearnedScale, LearnedSpread
from orchestrator.routing.power import reference_power_w
from orchestrator.routing.prefill_order import tokens_ahead
from orchestrator.routing.standing import Standing

# Byte-pair vocabularies give about four bytes of English a token.
SEED_TOKENS_PER_BYTE = 0.25
_SEED_PROMPT_BYTES = 2_000.0
_SEED_WEIGHT_PROMPTS = 4.0
# Output length to plan with before any outcome is known, in tokens.
SEED_COMPLETION_TOKENS = 128.0
_SEED_WEIGHT_REQUESTS = 4.0
# A prediction is a mean: while its spread is not known, so much of an objective is met.
SURE_SHARE = 0.75
# Devices of a model that are kept as they were looked at last, though nothing was learned of
# them.
MAX_STANDINGS = 4_096


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one completed request measured; times as in the engine's `Timings`.

    `ttft_ms` counts from arrival at the engine, `queue_ms` included. `mean_batch` 0
    means unknown. `joules` None: no meter and no estimate.
    """

    device_id: DeviceId
    model: str
    prompt_bytes: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_ms: float
    ttft_ms: float
    tpot_ms: float
    mean_batch: float
    joules: float | None = None
    joules_estimated: bool = True
    # Of the prediction with which the request was placed.
    predicted_cached_tokens: int = 0
    # Prompt tokens of others that the device had still to prefill when it was placed there.
    ahead_tokens: int = 0
    # Requests that it held then; None: not known.
    ahead_requests: int | None = None
    prefix_hints: tuple[int, ...] = ()


# Not frozen: one is made for each decision, and a frozen one costs more to make.
@dataclass(slots=True)
class Expected:
    """What a request is expected to need, on whatever device.

    `others_completion_tokens`: the output length to expect of the requests ahead of it.
    """

    prompt_tokens: int
    completion_tokens: float
    others_completion_tokens: float
    # Unix ms; 0: not known, and so not how long the others have run.
    now_ms: float = 0.0
    # What most requests meet of the mean TPOT: a few meet long prompts of others.
    tpot_scale: float = 1.0


class Estimator:
    """Predicts from measured speed; `observe` corrects prefill, decode and energy apart.

    Corrections are of the device's speed, not of its load: the queue is computed from
    the view and taken out of what is learned.
    """

    def __init__(self) -> None:
        self._learned: dict[tuple[DeviceId, str], Learned] = {}
        # By model, not by device, whose order it is not to change.
        self._tpot_scales: dict[str, LearnedScale] = {}
        self._ttft_spreads: dict[str, LearnedSpread] = {}
        # By model: the devices as they were looked at last.
        self._standings: dict[str, dict[DeviceId, Standing]] = {}
        self._prompt_lengths: dict[str, LearnedLine] = {}
        self._completion_tokens: dict[str, LearnedQuotient] = {}

    def prompt_tokens(self, request: RouteRequest) -> int:
        """Expected prompt length in tokens, at least 1."""
        length = self._prompt_lengths.get(request.model)
        if length is None:
            return max(1, round(SEED_TOKENS_PER_BYTE * request.prompt_bytes))
        return max(1, round(length(request.prompt_bytes)))

    def completion_tokens(self, model: str, max_tokens: int | None) -> float:
        """Expected output length in tokens, at least 1."""
        learned = self._completion_tokens.get(model)
        expected = SEED_COMPLETION_TOKENS if learned is None else learned.value
        return max(1.0, expected if max_tokens is None else min(expected, max_tokens))

    def expect(self, request: RouteRequest, now_ms: float = 0.0) -> Expected:
        """The part of a prediction that is the same for all devices."""
        mean = self.completion_tokens(request.model, None)
        own = mean if request.max_tokens is None else max(1.0, min(mean, request.max_tokens))
        scale = self._tpot_scales.get(request.model)
        tpot_scale = 1.0 if scale is None else scale.value
        return Expected(self.prompt_tokens(request), own, mean, now_ms, tpot_scale)

    def standings(self, model_name: str) -> Mapping[DeviceId, Standing]:
        """Devices as they were looked at last; who finds another `device` there asks `look`."""
        return self._standings.get(model_name, {})

    def look(self, device: DeviceView, model: ServedModel, occupied: int) -> Standing:
        """The device as the view shows it now, kept until it is forgotten; it holds `occupied`.

        Of a very large fleet not all are kept: most were never sent anything, and are seldom drawn.
        """
        learned = self._learned.get((device.device_id, model.name))
        if learned is not None and learned.model is not model:
            learned = self._note(device, model)
        standing = Standing(device, model, learned, occupied)
        standings = self._standings.setdefault(model.name, {})
        if learned is not None or len(standings) < MAX_STANDINGS:
            standings[device.device_id] = standing
        return standing

    def predict(self, request: RouteRequest, device: DeviceView, model: ServedModel) -> Prediction:
        """What the request would meet on the device as the view shows it."""
        self.track(device, model)
        occupied = num_occupied(device, model)
        return self.predict_expected(self.expect(request), device, model, occupied)

    def predict_expected(
        self, expected: Expected, device: DeviceView, model: ServedModel, occupancy: int
    ) -> Prediction:
        """The same for a request of this size and a device that holds `occupancy` others.

        Nothing is kept of the device.
        """
        learned = self._learned.get((device.device_id, model.name))
        standing = Standing(device, model, learned, occupancy)
        ttft_ms, tpot_ms, joules, estimated = self.figures(expected, standing)
        return Prediction(ttft_ms, tpot_ms, joules, estimated, expected.prompt_tokens)

    def figures(
        self, expected: Expected, standing: Standing, cached_tokens: int = 0
    ) -> tuple[float, float, float | None, bool]:
        """TTFT and TPOT in ms, joules (None: unknown), and whether those are an estimate.

        TTFT = wait for a slot + prompts that go first + own prompt but for what is cached
        / prefill speed + one decode step. TPOT is that of the batch the request
        would join; other models at work on the device share its speed.
        """
        learned, batch = standing.learned, standing.batch
        tpot_ms, prefill_ms, joules_factor = standing.step_ms, standing.prefill_ms, 1.0
        power_w, estimated = standing.power_w, standing.power_estimated
        if learned is not None:
            tpot_ms *= learned.decode.value
            prefill_ms *= learned.prefill.value
            if learned.joules.num_observations:
                power_w, estimated = reference_power_w(standing.device), learned.joules_estimated
                joules_factor = learned.joules.value
        own_tokens = expected.prompt_tokens - cached_tokens
        own_ms = own_tokens * prefill_ms
        ttft_ms = own_ms + tpot_ms
        if standing.ahead_tokens:
            ahead = tokens_ahead(own_tokens, standing.prompts, standing.ahead_tokens)
            ttft_ms += prefill_ms * ahead
        if not standing.free_slot:
            # All slots taken: one comes free every (output length * TPOT / slots) ms, but
            # after a burst not before the oldest have had the time for their output.
            slots, since = standing.model.slots, standing.since
            num_ahead = standing.occupied - slots + 1
            whole_ms = expected.others_completion_tokens * tpot_ms
            wait_ms = num_ahead * whole_ms / batch
            if expected.now_ms and num_ahead <= slots and num_ahead <= len(since):
                wait_ms = max(wait_ms, since[num_ahead - 1] + whole_ms - expected.now_ms)
            ttft_ms += wait_ms
        busy_ms = own_ms + expected.completion_tokens * tpot_ms / batch
        tpot_ms *= expected.tpot_scale
        if power_w is None:
            return ttft_ms, tpot_ms, None, True
        return ttft_ms, tpot_ms, power_w * busy_ms / 1000.0 * joules_factor, estimated

    def sure_share(self, model_name: str) -> float | None:
        """A TTFT predicted within this share of an objective is likely to be met; None: unknown."""
        spread = self._ttft_spreads.get(model_name)
        return None if spread is None or spread.upper is None else 1.0 / spread.upper

    def observe_ttft(self, model_name: str, actual_ms: float, predicted_ms: float) -> None:
        """A first token came, so long after its request had been sent to a device."""
        spread = self._ttft_spreads.setdefault(model_name, LearnedSpread())
        spread.observe(actual_ms, predicted_ms)

    def place_wait_ms(self, device: DeviceView, model: ServedModel) -> float:
        """Predicted time until a full device has room for one more request."""
        standing = self.standings(model.name).get(device.device_id)
        if standing is None or standing.device is not device:
            standing = self.look(device, model, num_occupied(device, model))
        step_ms, batch = standing.step_ms, standing.batch
        if standing.learned is not None:
            step_ms *= standing.learned.decode.value
        over = standing.occupied - model.slots - device.max_waiting + 1
        return max(1, over) * self.completion_tokens(model.name, None) * step_ms / batch

    def observe(self, outcome: Outcome) -> None:
        """Learn from a completed request; one of a device not tracked teaches only lengths."""
        length = self._prompt_lengths.get(outcome.model)
        if length is None:
            length = LearnedLine(SEED_TOKENS_PER_BYTE, _SEED_PROMPT_BYTES, _SEED_WEIGHT_PROMPTS)
            self._prompt_lengths[outcome.model] = length
        length.observe(outcome.prompt_bytes, outcome.prompt_tokens)
        completion = self._completion_tokens.setdefault(
            outcome.model, LearnedQuotient(SEED_COMPLETION_TOKENS, _SEED_WEIGHT_REQUESTS)
        )
        completion.observe(outcome.completion_tokens, 1)

        learned = self._learned.get((outcome.device_id, outcome.model))
        if learned is None:
            return
        device_class = learned.device.device_class
        batch = max(1, round(outcome.mean_batch))
        step_ms = speed.tpot_ms(learned.model, device_class, batch)
        if outcome.completion_tokens > 1:
            # Against what was there when it was placed, which is what a prediction knows: what
            # comes in its time, others' prompts above all, is then in the ratio.
            placed_in = batch
            if outcome.ahead_requests is not None:
                placed_in = min(outcome.ahead_requests + 1, learned.model.slots or 1)
            placed_ms = speed.tpot_ms(learned.model, device_class, placed_in)
            scale = self._tpot_scales.setdefault(outcome.model, LearnedScale())
            scale.observe(outcome.tpot_ms, placed_ms * learned.decode.value)
            learned.decode.observe(outcome.tpot_ms, placed_ms)
        computed_tokens = max(1, outcome.prompt_tokens - outcome.cached_tokens)
        prefill_ms = (
            1000.0 * computed_tokens / speed.prefill_tokens_per_s(learned.model, device_class)
        )
        first_step_ms = step_ms * learned.decode.value
        # Some of those ahead may have been prefilled while it queued, the others within what
        # was measured: the engine starts several prompts at once, and computes them in turn.
        ahead_ms = prefill_ms * outcome.ahead_tokens / computed_tokens
        learned.prefill.observe_within(
            max(outcome.ttft_ms - outcome.queue_ms - first_step_ms, prefill_ms / 10),
            (prefill_ms, prefill_ms + ahead_ms),
        )
        power_w = reference_power_w(learned.device)
        if outcome.joules is not None and power_w is not None:
            busy_ms = prefill_ms * learned.prefill.value
            busy_ms += outcome.completion_tokens * first_step_ms / batch
            learned.joules.observe(outcome.joules, power_w * busy_ms / 1000.0)
            learned.joules_estimated = outcome.joules_estimated

    def forget(self, device_id: DeviceId) -> None:
        """Drop what was learned of a device that left or was removed."""
        for key in [key for key in self._learned if key[0] == device_id]:
            del self._learned[key]
        for standings in self._standings.values():
            standings.pop(device_id, None)

    def track(self, device: DeviceView, model: ServedModel) -> None:
        """Learn from what the device will measure of the model, from these figures on."""
        learned = self._note(device, model)
        standing = self.standings(model.name).get(device.device_id)
        if standing is not None:
            standing.learned = learned

    def _note(self, device: DeviceView, model: ServedModel) -> Learned:
        key = (device.device_id, model.name)
        learned = self._learned.get(key)
        if learned is None or learned.model.fingerprint != model.fingerprint:
            # Another file under the same name: what was learned is not its own.
            learned = self._learned[key] = Learned(device, model)
        learned.device, learned.model = device, model
        return learned
