"""One gateway's stream of requests, as the hub's core writes to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from orchestrator.hub.outbox import Outbox
from shoal.v1 import inference_pb2

# Updates in one frame when several frames waited; bounds the message, not the rate.
MAX_MERGED_UPDATES = 512


class GatewaySession:
    """Frames towards one gateway. A gateway that does not read loses its session."""

    def __init__(self, gateway_id: str, queue_frames: int) -> None:
        self.gateway_id = gateway_id
        self.overflowed = False
        self._outbox: Outbox[inference_pb2.InferenceFrame] = Outbox(queue_frames)

    def send(self, frame: inference_pb2.InferenceFrame) -> None:
        """Queue a frame; when too many wait, the session ends and its requests with it."""
        if not self._outbox.put(frame) and not self._outbox.closed:
            self.overflowed = True
            self._outbox.discard()

    def send_update(self, update: inference_pb2.SequenceUpdate) -> None:
        """Queue one update in a frame of its own."""
        self.send(inference_pb2.InferenceFrame(updates=[update]))

    def close(self) -> None:
        """Take nothing more; what waits is still written."""
        self._outbox.close()

    async def write_to(
        self, write: Callable[[inference_pb2.InferenceFrame], Awaitable[None]]
    ) -> None:
        """Write until the session ends; `overflowed` tells whether it ended so."""

        async def write_merged(frames: list[inference_pb2.InferenceFrame]) -> None:
            for frame in merged(frames):
                await write(frame)

        await self._outbox.write_to(write_merged)

    async def take(self) -> list[inference_pb2.InferenceFrame]:
        """The waiting frames, merged into few; empty when the session ended."""
        return list(merged(await self._outbox.take()))


def merged(frames: list[inference_pb2.InferenceFrame]) -> Iterator[inference_pb2.InferenceFrame]:
    """The same updates in the same order in as few frames as the bound allows."""
    current: inference_pb2.InferenceFrame | None = None
    for frame in frames:
        if current is None:
            current = frame
        elif len(current.updates) + len(frame.updates) <= MAX_MERGED_UPDATES:
            current.MergeFrom(frame)
        else:
            yield current
            current = frame
    if current is not None:
        yield current
