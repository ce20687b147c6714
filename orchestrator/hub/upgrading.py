"""Which devices can be given another version from here."""

from __future__ import annotations

from orchestrator.hub.connection import DeviceConnection
from shoal.v1 import device_pb2

_SINCE_PROTOCOL = 2


def cannot_upgrade(connection: DeviceConnection) -> str:
    """Why the device takes no upgrade, with the remedy; empty: it does."""
    if connection.protocol < _SINCE_PROTOCOL:
        return "its agent is too old to be upgraded from here; run the install line on the device"
    if not connection.installation.release:
        return (
            "its agent was not installed by the install line: it is upgraded with the "
            "orchestrator that started it, or by whoever started it"
        )
    if connection.installation.trial:
        return f"{connection.installation.trial} is on trial there"
    return ""


def note(connection: DeviceConnection, progress: device_pb2.UpgradeProgress) -> None:
    """What the device says of an order; a release that it keeps is on trial no more."""
    connection.upgrade = progress
    if progress.phase == "kept":
        connection.installation.trial = ""
