"""May a device take a request at all? If not, why not."""

from __future__ import annotations

from orchestrator.fleet.view import DeviceId, DeviceState, DeviceView, ServedModel
from orchestrator.request import RouteRequest
from orchestrator.routing.decision import Rejection, RejectionKind

# Looked up once: enum attribute access is slow in the loop over devices.
_READY = DeviceState.READY
EXCLUDED = Rejection(RejectionKind.EXCLUDED, "was tried for this request and failed")
_STATE = {
    state: Rejection(RejectionKind.STATE, f"is {state}, only READY takes new requests")
    for state in DeviceState
}


def why_ineligible(
    request: RouteRequest, device: DeviceView, exclude: frozenset[DeviceId]
) -> Rejection | None:
    """The first reason that rules the device out but for room, None when there is none."""
    model = device.models.get(request.model)
    if model is None:
        return Rejection(RejectionKind.MODEL_ABSENT, "does not serve {}", (request.model,))
    if request.device and request.device not in (device.device_id, device.name):
        return Rejection(
            RejectionKind.DEVICE_HINT, "the request asks for device {}", (request.device,)
        )
    if request.device_class and request.device_class != device.device_class:
        return Rejection(
            RejectionKind.CLASS_HINT, "the request asks for class {}", (request.device_class,)
        )
    if device.state is not _READY:
        return _STATE[device.state]
    unwell = model.unwell
    if unwell is not None and not (unwell.ejected and request.device):
        return Rejection(RejectionKind.UNWELL, "is {}", (unwell,))
    if device.device_id in exclude:
        return EXCLUDED
    if model.loading:
        return Rejection(RejectionKind.MODEL_LOADING, "is loading {}", (model.name,))
    if not model.ready and unwell is None:
        return Rejection(RejectionKind.MODEL_NOT_READY, "failed to load {}", (model.name,))
    return None


def why_full(device: DeviceView, model: ServedModel, occupied: int) -> Rejection | None:
    """A rejection when no slot and no waiting place is left.

    Asked last, so that a FULL device is one that would serve if it had room.
    """
    if occupied < model.slots + device.max_waiting:
        return None
    return Rejection(
        RejectionKind.FULL,
        "is full: {} requests for {} slots and {} waiting places",
        (occupied, model.slots, device.max_waiting),
    )
