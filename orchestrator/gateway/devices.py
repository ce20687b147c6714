"""The fleet's devices through all connected hubs, as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

from orchestrator.dispatch.edge import EdgeBackend
from orchestrator.dispatch.hub_link import HubLink
from shoal.errors import Reason, ShoalError
from shoal.v1 import engine_pb2, fleet_pb2

# A hub answers from memory; longer than this, and it hangs.
_TIMEOUT_S = 5.0

DeviceCall = Callable[[HubLink, fleet_pb2.DeviceRequest], Awaitable[fleet_pb2.DeviceReply]]


async def list_devices(edge: EdgeBackend) -> list[dict[str, Any]]:
    """Every device once, by name; raises NO_DEVICE when no hub answers."""
    links = [link for link in edge.links if link.connected]
    if not links:
        raise _no_hub()
    replies = await asyncio.gather(
        *(
            link.fleet.ListDevices(fleet_pb2.ListDevicesRequest(), timeout=_TIMEOUT_S)
            for link in links
        ),
        return_exceptions=True,
    )
    newest: dict[str, fleet_pb2.DeviceStatus] = {}
    answered = False
    for reply in replies:
        if isinstance(reply, grpc.aio.AioRpcError):
            continue
        if isinstance(reply, BaseException):
            raise reply
        answered = True
        for status in reply.devices:
            # Every hub lists the registry: of a device its own hub knows best.
            known = newest.get(status.device_id)
            if known is None or _rank(status) > _rank(known):
                newest[status.device_id] = status
    if not answered:
        raise _no_hub()
    return [_device(status) for status in sorted(newest.values(), key=lambda s: s.name)]


def _rank(status: fleet_pb2.DeviceStatus) -> tuple[int, bool, int]:
    """Newer connections first, then who has the device (and so its version), then by time."""
    return status.epoch, bool(status.agent_version), status.last_seen_unix_ms


async def drain_device(link: HubLink, request: fleet_pb2.DeviceRequest) -> fleet_pb2.DeviceReply:
    """Let the device finish what it runs and take nothing new."""
    reply: fleet_pb2.DeviceReply = await link.fleet.DrainDevice(request, timeout=_TIMEOUT_S)
    return reply


async def remove_device(link: HubLink, request: fleet_pb2.DeviceRequest) -> fleet_pb2.DeviceReply:
    """Forget the device and refuse its certificate from now on."""
    reply: fleet_pb2.DeviceReply = await link.fleet.RemoveDevice(request, timeout=_TIMEOUT_S)
    return reply


async def change_device(edge: EdgeBackend, device: str, call: DeviceCall) -> dict[str, Any]:
    """Ask each hub in turn until one knows the device."""
    last: grpc.aio.AioRpcError | None = None
    for link in edge.links:
        if not link.connected:
            continue
        try:
            reply = await call(link, fleet_pb2.DeviceRequest(device=device))
        except grpc.aio.AioRpcError as error:
            last = error
            continue
        return {"id": reply.device_id, "state": reply.state}
    if last is None:
        raise _no_hub()
    if last.code() is grpc.StatusCode.NOT_FOUND:
        raise ShoalError(
            Reason.MODEL_NOT_FOUND, last.details() or "No such device.", param="device"
        )
    raise ShoalError(Reason.NO_DEVICE, f"The hub could not do it: {last.details()}")


def _no_hub() -> ShoalError:
    return ShoalError(Reason.NO_DEVICE, "No hub of the fleet is reachable. Try again soon.")


def _plain(message: Any) -> dict[str, Any]:
    result: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return result


def _device(status: fleet_pb2.DeviceStatus) -> dict[str, Any]:
    capabilities = status.capabilities
    return {
        "id": status.device_id,
        "name": status.name,
        "state": status.state,
        "class": capabilities.device_class,
        "emulated": capabilities.emulated,
        "detected_class": capabilities.detected_class,
        "models": [_model(model) for model in status.models],
        "in_flight": status.in_flight,
        "last_seen_unix_ms": status.last_seen_unix_ms,
        "agent_version": status.agent_version,
        "protocol": status.protocol,
        "installation": _plain(status.installation),
        "upgrade": _plain(status.upgrade),
        "epoch": status.epoch,
        "clock_skew_ms": status.clock_skew_ms,
        "hub": status.hub_id,
        "certificate_expires_unix_ms": status.certificate_expires_unix_ms,
        "capabilities": _plain(capabilities),
        "load": _plain(status.load) if status.HasField("load") else None,
    }


def _model(model: engine_pb2.ModelReport) -> dict[str, Any]:
    plain = _plain(model)
    state = engine_pb2.ModelState.Name(model.state)
    plain["state"] = state.removeprefix("MODEL_STATE_")
    # 64-bit integers are strings in protobuf's JSON.
    plain["num_parameters"] = model.num_parameters
    plain["size_bytes"] = model.size_bytes
    return plain
