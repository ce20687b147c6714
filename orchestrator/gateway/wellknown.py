"""What a device may know before it enrols: public, and checked against its join token."""

from __future__ import annotations

import base64
import hashlib

from orchestrator.gateway.config import GatewayConfig
from shoal.wire import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


def join_info(config: GatewayConfig, ca_pem: str) -> dict[str, object]:
    """The answer of `GET /shoal/v1/join`."""
    return {
        "ca_pem": ca_pem,
        "enrol_address": config.enrol_address,
        "hub_addresses": list(config.advertised_hub_addresses),
        "protocol": {"min": MIN_PROTOCOL_VERSION, "max": PROTOCOL_VERSION},
    }


def ca_sha256(ca_pem: bytes) -> str:
    """Hex SHA-256 of the certificate's DER; ValueError when it is not PEM."""
    start, end = ca_pem.find(_BEGIN), ca_pem.find(_END)
    if start < 0 or end < 0:
        raise ValueError("the CA file holds no PEM certificate")
    der = base64.b64decode(ca_pem[start + len(_BEGIN) : end])
    return hashlib.sha256(der).hexdigest()
