"""DeviceLink: the one stream of each device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import structlog

from orchestrator.fleet.view import DeviceId
from orchestrator.hub import upgrading
from orchestrator.hub.connection import DeviceConnection, Rejected
from orchestrator.hub.devices import Devices
from orchestrator.hub.local_served import LocalServed
from orchestrator.hub.placement import Placement
from orchestrator.hub.proofs import Proofs
from orchestrator.hub.roles import Role, certificate_expires_unix_ms, require_role
from shoal.v1 import device_pb2, device_pb2_grpc, engine_pb2

_log = structlog.get_logger()

HELLO_DEADLINE_S = 10.0


class DeviceLinkServicer(device_pb2_grpc.DeviceLinkServicer):
    """Feeds devices' frames to the hub's cores and their outboxes to the devices."""

    def __init__(
        self, devices: Devices, placement: Placement, local_served: LocalServed, proofs: Proofs
    ) -> None:
        self._devices = devices
        self._local_served = local_served
        self._placement = placement
        self._proofs = proofs

    async def Connect(
        self,
        request_iterator: AsyncIterator[device_pb2.DeviceFrame],
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Serve one connection until either side ends it; the first frame must be Hello."""
        device_id = DeviceId(await require_role(context, Role.DEVICE))
        try:
            connection = await self._welcome(device_id, context)
        except Rejected as rejected:
            _log.warning("device_rejected", device_id=device_id, why=str(rejected))
            await context.write(rejected.frame)
            return
        _log.info(
            "device_connected",
            device_id=device_id,
            epoch=connection.epoch,
            clock_skew_ms=connection.clock_skew_ms,
        )
        reader = asyncio.create_task(self._read(connection, context))

        async def write(frames: list[device_pb2.HubFrame]) -> None:
            for frame in frames:
                await context.write(frame)

        try:
            await connection.outbox.write_to(write)
        finally:
            reader.cancel()
            self._devices.closed(connection)
            _log.info("device_disconnected", device_id=device_id, epoch=connection.epoch)

    async def _welcome(
        self, device_id: DeviceId, context: grpc.aio.ServicerContext
    ) -> DeviceConnection:
        bad_frame = device_pb2.Reject.REASON_BAD_FRAME
        try:
            async with asyncio.timeout(HELLO_DEADLINE_S):
                first = await context.read()
        except TimeoutError:
            raise Rejected(bad_frame, f"no Hello came within {HELLO_DEADLINE_S:.0f} s") from None
        if first is grpc.aio.EOF or first.WhichOneof("frame") != "hello":
            raise Rejected(bad_frame, "the first frame of a stream must be Hello")
        connection = await self._devices.connect(device_id, first.hello)
        connection.certificate_expires_unix_ms = certificate_expires_unix_ms(context)
        return connection

    async def _read(self, connection: DeviceConnection, context: grpc.aio.ServicerContext) -> None:
        """Until the device ends its half or breaks the protocol; then the stream ends."""
        try:
            while (frame := await context.read()) is not grpc.aio.EOF:
                if frame.epoch != connection.epoch:
                    raise Rejected(
                        device_pb2.Reject.REASON_BAD_FRAME,
                        f"frame of epoch {frame.epoch} on the stream of epoch {connection.epoch}",
                    )
                if not self._devices.is_current(connection):
                    return
                self._dispatch(connection, frame)
        except Rejected as rejected:
            _log.warning("device_rejected", device_id=connection.device_id, why=str(rejected))
            connection.outbox.close(rejected.frame)
        finally:
            connection.outbox.close()

    def _dispatch(self, connection: DeviceConnection, frame: device_pb2.DeviceFrame) -> None:
        match frame.WhichOneof("frame"):
            case "inference":
                inference = frame.inference
                engine = inference.load if inference.HasField("load") else None
                self._devices.progressed(connection, engine, moved=len(inference.updates) > 0)
                self._proofs.hear(connection.device_id, inference)
                self._placement.on_frame(connection.device_id, connection.epoch, inference)
            case "heartbeat":
                self._devices.heartbeat(connection, frame.heartbeat)
            case "model":
                self._devices.model_changed(connection, frame.model)
                if frame.model.state == engine_pb2.MODEL_STATE_READY:
                    self._placement.watch.renewed(connection.device_id, frame.model.name)
            case "goodbye":
                self._devices.goodbye(connection)
            case "upgrade_progress":
                upgrading.note(connection, frame.upgrade_progress)
                if frame.upgrade_progress.phase == "draining":
                    self._devices.restarts(connection)
            case "local_served":
                self._local_served.take(connection.device_id, frame.local_served)
            case None:
                # A newer agent's frame that this hub does not know: skipped, as proto3 asks.
                return
            case other:
                raise Rejected(
                    device_pb2.Reject.REASON_BAD_FRAME, f"unexpected {other} on a running stream"
                )
