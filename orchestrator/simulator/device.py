"""A simulated device: its engines share its speed, and its energy is power x time."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.fleet.view import DeviceId, DeviceState, DeviceView, ServedModel
from orchestrator.simulator.engine import EngineModel, Sequence, Speeds
from orchestrator.simulator.fleet_file import DeviceKind
from orchestrator.simulator.workload import SimModel


def served_models(kind: DeviceKind, models: Mapping[str, SimModel]) -> dict[str, ServedModel]:
    """What a device of this kind reports of its models: the stated speeds."""
    served = {}
    for name, model in models.items():
        if kind.models and name not in kind.models:
            continue
        size = model.num_parameters
        batches = [1 << i for i in range(kind.slots.bit_length())]
        curve = tuple(1000.0 * batch / kind.step_ms(size, batch) for batch in batches)
        served[name] = ServedModel(
            name=name,
            fingerprint=name,
            num_parameters=size,
            context_tokens=8_192,
            slots=kind.slots,
            prefill_tokens_per_s=1000.0 / kind.prefill_ms(size, 1),
            decode_tokens_per_s=curve[0],
            decode_batch_tokens_per_s=curve,
        )
    return served


class SimDevice:
    """One device; the engines of models that were never asked for do not exist yet."""

    __slots__ = (
        "_engines",
        "_joules_each",
        "_now_ms",
        "_view",
        "busy_ms",
        "device_id",
        "epoch",
        "factor",
        "kind",
        "max_waiting",
        "num_held",
        "paused",
        "served",
        "state",
        "version",
    )

    def __init__(
        self, device_id: DeviceId, kind: DeviceKind, served: dict[str, ServedModel], factor: float
    ) -> None:
        self.device_id = device_id
        self.kind = kind
        self.served = served
        # True duration over stated duration of everything it does.
        self.factor = factor
        self.state = DeviceState.READY
        self.epoch = 1
        # Events of an older version are void.
        self.version = 0
        self.num_held = 0
        # Requests that it is given beyond its slots.
        self.max_waiting = kind.max_waiting
        # Frozen: it keeps what it holds and makes no progress.
        self.paused = False
        self.busy_ms = 0.0
        self._engines: dict[str, EngineModel] = {}
        self._now_ms = 0.0
        # Joules that a sequence running since the start would have been charged.
        self._joules_each = 0.0
        self._view: DeviceView | None = None

    def view(self) -> DeviceView:
        """The device as the router sees it."""
        if self._view is None:
            engines = self._engines
            self._view = DeviceView(
                device_id=self.device_id,
                name=self.device_id,
                device_class=self.kind.device_class,
                state=self.state,
                models=self.served,
                in_flight={n: e.num_held for n, e in engines.items() if e.num_held},
                in_flight_prefill_tokens={
                    n: e.waiting_prompt_tokens for n, e in engines.items() if e.num_held
                },
                in_flight_prompts={n: e.prompt_lengths() for n, e in engines.items() if e.num_held},
                in_flight_since={n: e.taken_ms() for n, e in engines.items() if e.num_held},
                tdp_w=self.kind.busy_power_w,
                max_waiting=self.max_waiting,
            )
        return self._view

    def held(self, model: str) -> int:
        """Requests on the device for the model."""
        engine = self._engines.get(model)
        return 0 if engine is None else engine.num_held

    def has_room(self, model: str) -> bool:
        """Whether it would take one more."""
        return self.held(model) < self.kind.slots + self.max_waiting

    def set_state(self, state: DeviceState) -> None:
        """Note what the lifecycle decided."""
        self.state = state
        self._view = None

    def submit(self, sequence: Sequence, now_ms: float) -> float | None:
        """Take a request; the time of the device's next event."""
        self._advance(now_ms)
        model = sequence.job.model
        engine = self._engines.get(model.name)
        if engine is None:
            engine = self._engines[model.name] = EngineModel(self._speeds(model))
        engine.take(sequence)
        self.num_held += 1
        engine.admit(now_ms, self._joules_each)
        return self._changed(now_ms)

    def step(self, now_ms: float) -> tuple[list[Sequence], float | None]:
        """Make what is due happen; the sequences that ended and the next event's time."""
        self._advance(now_ms)
        ended: list[Sequence] = []
        for engine in self._engines.values():
            ended += engine.step(now_ms, self._joules_each)
            engine.admit(now_ms, self._joules_each)
        self.num_held -= len(ended)
        return ended, self._changed(now_ms)

    def pause(self, now_ms: float) -> None:
        """Stop making progress, without telling anybody."""
        self._advance(now_ms)
        self.paused = True
        self._changed(now_ms)

    def fail(self, now_ms: float) -> list[Sequence]:
        """Everything on the device is lost; returns it."""
        self._advance(now_ms)
        lost = [sequence for engine in self._engines.values() for sequence in engine.drop_all()]
        self.num_held = 0
        self._changed(now_ms)
        return lost

    def _advance(self, now_ms: float) -> None:
        elapsed_ms, self._now_ms = now_ms - self._now_ms, now_ms
        active = [engine for engine in self._engines.values() if engine.num_running]
        if elapsed_ms <= 0 or not active or self.paused:
            return
        for engine in active:
            engine.advance(elapsed_ms, 1.0 / len(active))
        self.busy_ms += elapsed_ms
        num_running = sum(engine.num_running for engine in active)
        self._joules_each += self.kind.busy_power_w * elapsed_ms / 1000.0 / num_running

    def _changed(self, now_ms: float) -> float | None:
        self.version += 1
        self._view = None
        active = [engine for engine in self._engines.values() if engine.num_running]
        if not active or self.paused:
            return None
        return now_ms + min(engine.due_in_ms(1.0 / len(active)) for engine in active)

    def _speeds(self, model: SimModel) -> Speeds:
        kind, size = self.kind, model.num_parameters
        steps = tuple(self.factor * kind.step_ms(size, n + 1) for n in range(kind.slots))
        return Speeds(self.factor * kind.prefill_ms(size, 1), steps)
