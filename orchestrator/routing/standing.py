"""One device and model as the fleet view shows them: what every prediction takes from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.fleet.view import DeviceState, DeviceView, ServedModel, num_occupied
from orchestrator.routing import speed
from orchestrator.routing.power import busy_power_w

if TYPE_CHECKING:
    from orchestrator.routing.learned import Learned

# Looked up once: enum attribute access is slow.
_READY = DeviceState.READY


class Standing:
    """Made once of each value of a device in the view, since a decision reads it of dozens.

    `occupied`: requests it holds. `ready`: it serves the model, `takes`: and has room for one
    more that asks for nothing special.
    `step_ms` and `prefill_ms` (a token) are by the device's own figures, `step_ms` in the
    `batch` that one more request would make; `ahead_tokens` wait to be prefilled, `prompts`
    are those of known length among them. `learned`: what corrects it; None: nothing yet.
    """

    __slots__ = (
        "ahead_tokens", "batch", "device", "device_class", "free_slot", "learned", "model",
        "occupied", "power_estimated", "power_w", "prefill_ms", "prompts", "ready",
        "since", "step_ms", "takes",
    )  # fmt: skip

    def __init__(
        self, device: DeviceView, model: ServedModel, learned: Learned | None, occupied: int
    ) -> None:
        name, slots, device_class = model.name, model.slots, device.device_class
        self.device = device
        self.device_class = device_class
        self.model = model
        self.learned = learned
        self.occupied = occupied
        self.free_slot = occupied < slots
        self.ready = device.state is _READY and model.ready
        self.takes = self.ready and occupied < slots + device.max_waiting
        self.batch = batch = occupied + 1 if occupied < slots else slots or 1
        # Other models at work on the device share its speed.
        sharing = 1 if len(device.models) < 2 else 1 + _num_other_active(device, name)
        self.step_ms = sharing * speed.tpot_ms(model, device_class, batch)
        self.prefill_ms = sharing * 1000.0 / speed.prefill_tokens_per_s(model, device_class)
        reserved = device.in_flight_prefill_tokens.get(name, 0)
        self.ahead_tokens = max(reserved, model.waiting_prefill_tokens)
        self.prompts = device.in_flight_prompts.get(name, ())
        self.since = device.in_flight_since.get(name, ())
        self.power_w, self.power_estimated = busy_power_w(device, occupied)


def _num_other_active(device: DeviceView, model_name: str) -> int:
    """Other models that are generating on the device now."""
    return sum(
        1
        for name, other in device.models.items()
        if name != model_name and num_occupied(device, other)
    )
