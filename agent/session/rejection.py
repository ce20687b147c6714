"""Why a hub refused a device, and which reasons stay so, with the remedy."""

from __future__ import annotations

from enum import Enum

from agent.session.errors import ExitCode


class RejectReason(Enum):
    """Why a hub refused the stream."""

    OTHER = 0
    PROTOCOL = 1
    REVOKED = 2
    UNKNOWN_DEVICE = 3
    REPLACED = 4
    BAD_FRAME = 5
    SHUTTING_DOWN = 6


# Coming back is useless after these.
FATAL = {
    RejectReason.REVOKED: (
        ExitCode.REVOKED,
        "this device was removed from the fleet and its certificate is refused; "
        "join again with a fresh token and an empty --home",
    ),
    RejectReason.UNKNOWN_DEVICE: (
        ExitCode.UNKNOWN_DEVICE,
        "the fleet does not know this device; join again with a fresh token and an empty --home",
    ),
    RejectReason.REPLACED: (
        ExitCode.REPLACED,
        "another process connected with this device's identity; run one agent per --home "
        "and never copy an identity",
    ),
    RejectReason.PROTOCOL: (
        ExitCode.PROTOCOL,
        "hub and agent have no protocol version in common; update the older one",
    ),
}
