"""Model files from the hub, over mutual TLS: resumed, paced, kept only when the hash fits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import grpc
import grpc.aio

from agent.rpc.identity import Identity
from agent.rpc.tls import describe, link_channel
from shoal.model_fetch import DownloadError, Progress, keep
from shoal.v1 import device_pb2, models_pb2
from shoal.v1 import models_pb2_grpc as rpc

# No chunk for so long: the hub hangs, or serves many others first.
_CHUNK_WITHIN_S = 60.0


class HubFiles:
    """Fetches from whichever hub answers."""

    def __init__(self, identity: Callable[[], Identity]) -> None:
        self._identity = identity

    async def fetch(self, order: device_pb2.LoadModel, target: Path, on_progress: Progress) -> None:
        """Fetch the ordered file to `target`. Raises DownloadError; what came stays for later."""
        identity = self._identity()
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".part")
        problem = "no hub address"
        for address in identity.hub_addresses:
            try:
                with partial.open("ab") as file:
                    await _fetch_from(address, identity, order, (file, on_progress))
                await asyncio.to_thread(keep, partial, order.sha256.lower(), target)
            except grpc.aio.AioRpcError as error:
                problem = describe(error)
            except (OSError, TimeoutError) as error:
                problem = str(error) or type(error).__name__
            else:
                return
        raise DownloadError(f"the hub's file: {problem}")


async def _fetch_from(
    address: str,
    identity: Identity,
    order: device_pb2.LoadModel,
    into: tuple[BinaryIO, Progress],
) -> None:
    file, on_progress = into
    done = file.seek(0, os.SEEK_END)
    if order.size_bytes and done > order.size_bytes:
        done = file.truncate(0)
    request = models_pb2.FetchFileRequest(sha256=order.sha256, offset=done)
    began_s, began_at = asyncio.get_running_loop().time(), done
    # A connection of its own: tokens of running requests do not queue behind it.
    async with link_channel(address, identity) as channel:
        call = rpc.ModelFilesStub(channel).Fetch(request)  # type: ignore[no-untyped-call]
        while True:
            async with asyncio.timeout(_CHUNK_WITHIN_S):
                chunk = await call.read()
            if chunk is grpc.aio.EOF:
                break
            done += len(chunk.data)
            if order.size_bytes and done > order.size_bytes:
                raise DownloadError(f"it is longer than the {order.size_bytes} bytes announced")
            await asyncio.to_thread(file.write, chunk.data)
            on_progress(done, order.size_bytes)
            if order.rate_bytes_per_s:
                due_s = began_s + (done - began_at) / order.rate_bytes_per_s
                await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))
        code = await call.code()
        if code is not grpc.StatusCode.OK:
            raise DownloadError(f"{code.name.lower()}: {await call.details()}")
    file.flush()
    await asyncio.to_thread(os.fsync, file.fileno())
