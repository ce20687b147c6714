"""The bytes of catalogued files, for the devices that were told to load them.

On the mutually authenticated port: who asks is known by certificate, and who was removed
gets nothing; an open path or a token in a URL would be neither. Each fetch comes on a
connection of its own, so tokens never queue behind gigabytes. A range is `offset`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import structlog

from orchestrator.catalogue.store_redis import CatalogueStore
from orchestrator.fleet.view import DeviceId, DeviceState
from orchestrator.hub.devices import Devices
from orchestrator.hub.roles import Role, require_role
from shoal.v1 import models_pb2, models_pb2_grpc

_log = structlog.get_logger()

_CHUNK_BYTES = 512 * 1024
# Others wait: a disk read by many at once serves none of them well.
MAX_FETCHES = 16


class ModelFilesServicer(models_pb2_grpc.ModelFilesServicer):
    """Serves files out of the catalogue."""

    def __init__(self, store: CatalogueStore, devices: Devices) -> None:
        self._store = store
        self._devices = devices
        self._gate = asyncio.Semaphore(MAX_FETCHES)

    async def Fetch(
        self, request: models_pb2.FetchFileRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[models_pb2.FileChunk]:
        """The file from `offset` to its end; PERMISSION_DENIED unless it was ordered here."""
        device_id = DeviceId(await require_role(context, Role.DEVICE))
        placements = await self._store.placements()
        ordered = any(
            each.desired and each.sha256 == request.sha256 and each.device_id == device_id
            for each in placements
        )
        variant = await self._store.variant(request.sha256) if ordered else None
        if variant is None:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, "this device was not told to load that file"
            )
            raise RuntimeError("abort returned")
        async with self._gate:
            _log.info("model_fetch", device_id=device_id, model=variant.model, at=request.offset)
            try:
                with await asyncio.to_thread(Path(variant.path).open, "rb") as file:
                    file.seek(request.offset)
                    while data := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                        if self._devices.state_of(device_id) is DeviceState.REVOKED:
                            await context.abort(
                                grpc.StatusCode.PERMISSION_DENIED, "the device was removed"
                            )
                        yield models_pb2.FileChunk(data=data)
            except OSError as error:
                _log.warning("model_file_unreadable", file=variant.path, error=str(error))
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the fleet's copy cannot be read")
