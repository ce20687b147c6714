"""What a device is told of sharing KV blocks: which blocks leave it, and how fast."""

from __future__ import annotations

import argparse
import hashlib
import json
from enum import StrEnum

_BYTES_PER_MB = 1_000_000
# More than any link; beyond it a limit is a slip of the pen.
_MAX_LIMIT_MB = 100_000.0


class SharePolicy(StrEnum):
    """Which blocks leave the device for the fleet's shared tier."""

    ALWAYS = "always"
    ON_SECOND_USE = "on_second_use"  # not before a second request could use them
    NEVER = "never"  # and none is fetched from there either


def cache_digest(
    url: str, login: tuple[str, str], fleet_secret: bytes, policy: str, write_bytes_per_s: int
) -> bytes:
    """Of all that a device is told of the shared tier, so that it sees when that changes."""
    told = [url, *login, fleet_secret.hex(), policy, write_bytes_per_s]
    return hashlib.sha256(json.dumps(told).encode()).digest()


def share_policy_flag(text: str) -> SharePolicy:
    """A command line's policy; argparse names the option beside what is wrong."""
    try:
        return SharePolicy(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not one of {', '.join(SharePolicy)}"
        ) from None


def write_limit_flag(text: str) -> int:
    """A command line's MB/s (10^6 bytes) as bytes/s; 0: no limit."""
    try:
        megabytes_per_s = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of MB/s") from None
    num_bytes = megabytes_per_s * _BYTES_PER_MB
    if not (megabytes_per_s == 0 or 1 <= num_bytes <= _MAX_LIMIT_MB * _BYTES_PER_MB):
        raise argparse.ArgumentTypeError(
            f"{text} is not between 0.000001 and {_MAX_LIMIT_MB:g} MB/s, nor 0 (no limit)"
        )
    return int(num_bytes)
