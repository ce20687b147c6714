"""What a device may know before it enrols: public, and checked against its join token."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from orchestrator.fleet.hubs_redis import HubEntry
from orchestrator.gateway.config import GatewayConfig
from shoal.wire import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


def join_info(config: GatewayConfig, ca_pem: str, hubs: Sequence[HubEntry]) -> dict[str, object]:
    """The answer of `GET /shoal/v1/join`; without `hubs` those that were configured."""
    links = [hub.link for hub in hubs] or list(config.advertised_hub_addresses)
    return {
        "ca_pem": ca_pem,
        "enrol_address": hubs[0].enrol if hubs else config.enrol_address,
        # In a fixed order: devices keep what they are told, and compare.
        "hub_addresses": sorted(links),
        "protocol": {"min": MIN_PROTOCOL_VERSION, "max": PROTOCOL_VERSION},
    }


def ca_sha256(ca_pem: bytes) -> str:
    """Hex SHA-256 of the certificate's DER; ValueError when it is not PEM."""
    start, end = ca_pem.find(_BEGIN), ca_pem.find(_END)
    if start < 0 or end < 0:
        raise ValueError("the CA file holds no PEM certificate")
    der = base64.b64decode(ca_pem[start + len(_BEGIN) : end])
    return hashlib.sha256(der).hexdigest()
