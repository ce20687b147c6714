"""Tells who installed or started this agent that a hub has taken it; an extension of the stream."""

from __future__ import annotations

from pathlib import Path

from shoal.v1 import device_pb2 as pb

# In the agent's home. install.sh waits for it: an identity alone does not say that the fleet
# still knows it.
CONNECTED_FILE = "connected"


class JoinedMark:
    """`home/connected` is there from the first welcome of a hub to this process on."""

    def __init__(self, home: Path) -> None:
        self._file = home / CONNECTED_FILE
        self._file.unlink(missing_ok=True)

    def greet(self, hello: pb.Hello) -> None:
        """Nothing."""

    def welcomed(self, protocol: int) -> None:
        """Leave the mark."""
        self._file.touch()

    def take(self, frame: pb.HubFrame) -> bool:
        """Nothing is for it."""
        return False
