"""Where the local API listens, from flags and environment."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from ipaddress import ip_address

from agent.session.errors import AgentError, ExitCode

# Beside the gateway's own 8421.
DEFAULT_PORT = 8431
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """`chosen`: somebody named it, so that an agent that cannot have it ends."""

    host: str
    port: int
    chosen: bool

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return ip_address(self.host).is_loopback


def add_local_api(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "--local-api",
        metavar="[HOST:]PORT|off",
        help=f"serve OpenAI's API on this device (SHOAL_LOCAL_API; default: {_LOOPBACK}:"
        f"{DEFAULT_PORT}; port 0: any free one)",
    )
    parser.add_argument(
        "--no-local-key",
        action="store_true",
        help="the local API asks for no key; on a loopback address only",
    )


def local_address(text: str, *, key: bool) -> LocalAddress | None:
    """The address, empty: the default; None: off.

    Raises AgentError for one that is none, and for one that others reach without a `key`.
    """
    if text == "off":
        return None
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or _LOOPBACK
    try:
        address = LocalAddress(host, int(port) if text else DEFAULT_PORT, chosen=bool(text))
        loopback = address.is_loopback
        if not 0 <= address.port < 2**16:
            raise ValueError("no such port")
    except ValueError as error:
        raise AgentError(
            ExitCode.USAGE, f"--local-api {text}: give PORT, ADDRESS:PORT (an IP address) or off"
        ) from error
    if not key and not loopback:
        raise AgentError(
            ExitCode.USAGE,
            f"--no-local-key with --local-api {text}: others could ask this device; use the key, "
            f"or {_LOOPBACK}",
        )
    return address
