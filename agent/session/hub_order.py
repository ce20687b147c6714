"""In which order a device dials its fleet's hubs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def dial_order(device_id: str, hub_addresses: Sequence[str]) -> list[str]:
    """The addresses in this device's own order, the same each time.

    Rendezvous hashing: devices spread evenly over the hubs, those of a hub that is gone
    spread over all others, and a hub that is added takes its share and moves no one else.
    """

    def weight(address: str) -> bytes:
        return hashlib.blake2b(f"{device_id} {address}".encode(), digest_size=8).digest()

    return sorted(hub_addresses, key=weight)
