"""Who is calling: the role and id in the client certificate's common name."""

from __future__ import annotations

from enum import StrEnum

import grpc
from cryptography import x509

_COMMON_NAME = "x509_common_name"
_CERTIFICATE = "x509_pem_cert"


class Role(StrEnum):
    """What a certificate lets its holder do on the link port."""

    DEVICE = "device"
    GATEWAY = "gateway"


async def require_role(context: grpc.aio.ServicerContext, role: Role) -> str:
    """Return the caller's id; ends the RPC with PERMISSION_DENIED for any other role.

    The certificate's signature was checked by TLS against the fleet's authority.
    """
    names = context.auth_context().get(_COMMON_NAME, [])
    prefix = f"{role}:"
    if len(names) == 1:
        name = names[0].decode("utf-8", "replace")
        if name.startswith(prefix) and len(name) > len(prefix):
            return str(name[len(prefix) :])
    await context.abort(
        grpc.StatusCode.PERMISSION_DENIED, f"this call needs a certificate of a {role}"
    )
    raise RuntimeError("abort returned")


def certificate_expires_unix_ms(context: grpc.aio.ServicerContext) -> int:
    """Until when the caller's certificate is valid; TLS has checked it when this is asked."""
    (pem,) = context.auth_context()[_CERTIFICATE]
    return int(x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp() * 1000)
