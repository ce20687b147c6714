"""Inference for gateways: one long-lived session each, many requests on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import structlog

from orchestrator.hub.placement import Placement
from orchestrator.hub.roles import Role, require_role
from orchestrator.hub.session import GatewaySession
from shoal.v1 import inference_pb2, inference_pb2_grpc

_log = structlog.get_logger()


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """Commands of gateways to the placement core, frames back."""

    def __init__(self, placement: Placement, queue_frames: int) -> None:
        self._placement = placement
        self._queue_frames = queue_frames

    async def Session(
        self,
        request_iterator: AsyncIterator[inference_pb2.InferenceCommand],
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Serve until either side ends the stream, which cancels what runs on it."""
        gateway_id = await require_role(context, Role.GATEWAY)
        session = GatewaySession(gateway_id, self._queue_frames)
        reader = asyncio.create_task(self._read(session, context))
        _log.info("gateway_connected", gateway_id=gateway_id)
        try:
            await session.write_to(context.write)
        finally:
            reader.cancel()
            self._placement.cancel_session(session)
            _log.info("gateway_disconnected", gateway_id=gateway_id, overflowed=session.overflowed)

    async def _read(self, session: GatewaySession, context: grpc.aio.ServicerContext) -> None:
        try:
            while (command := await context.read()) is not grpc.aio.EOF:
                match command.WhichOneof("command"):
                    case "submit":
                        self._placement.submit(session, command.submit)
                    case "cancel":
                        self._placement.cancel(session, command.cancel.request_id)
        finally:
            session.close()
