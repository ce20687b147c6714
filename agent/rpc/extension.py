"""What takes part in the device's stream beside requests, models and heartbeats."""

from __future__ import annotations

from typing import Protocol

from shoal.v1 import device_pb2 as pb


class Extension(Protocol):
    """Called from the event loop; what it sends, it sends through `Device.send`."""

    def greet(self, hello: pb.Hello) -> None:
        """Add to the first frame of a stream."""
        ...

    def welcomed(self, protocol: int) -> None:
        """A hub took the connection; both sides speak this protocol."""
        ...

    def take(self, frame: pb.HubFrame) -> bool:
        """Handle a frame of the hub; False when it is not of a kind that is handled here."""
        ...
