"""May a device take a request at all? If not, why not."""

from __future__ import annotations

from orchestrator.fleet.view import DeviceId, DeviceState, DeviceView, ServedModel
from orchestrator.request import RouteRequest
from orchestrator.routing.decision import Rejection, RejectionKind
from orchestrator.routing.estimator import num_occupied

_EXCLUDED = Rejection(RejectionKind.EXCLUDED, "was tried for this request and failed")
_STATE = {
    state: Rejection(RejectionKind.STATE, f"is {state}, only READY takes new requests")
    for state in DeviceState
}


def why_ineligible(
    request: RouteRequest, device: DeviceView, exclude: frozenset[DeviceId]
) -> Rejection | None:
    """The first reason that rules the device out, None when it may take the request.

    Fullness comes last, so that a FULL device is one that would serve if it had room.
    """
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
    if device.state is not DeviceState.READY:
        return _STATE[device.state]
    if device.device_id in exclude:
        return _EXCLUDED
    if not model.ready:
        return Rejection(
            RejectionKind.MODEL_NOT_READY, "has {} but not ready (loading or failed)", (model.name,)
        )
    if is_full(device, model):
        return Rejection(
            RejectionKind.FULL,
            "is full: {} requests for {} slots and {} waiting places",
            (num_occupied(device, model), model.slots, device.max_waiting),
        )
    return None


def is_full(device: DeviceView, model: ServedModel) -> bool:
    """No slot and no waiting place is left."""
    return num_occupied(device, model) >= model.slots + device.max_waiting


def has_free_slot(device: DeviceView, model: ServedModel) -> bool:
    """A new request would start without waiting for another to end."""
    return num_occupied(device, model) < model.slots
