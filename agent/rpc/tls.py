"""Channels to the hub: what to trust, whom to be, how a failed call reads."""

from __future__ import annotations

import grpc
import grpc.aio

from agent.rpc.identity import Identity
from shoal.wire import CHANNEL_OPTIONS, HUB_TLS_NAME

# Each channel on its own connection with its own state: gRPC would share one
# between equal targets, and with it the back-off of a failed one.
_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.ssl_target_name_override", HUB_TLS_NAME),
    ("grpc.use_local_subchannel_pool", 1),
)


def is_loopback(address: str) -> bool:
    """True for host:port or a URL on this machine, where no proxy belongs in between."""
    host = address.rpartition("://")[2].partition("/")[0]
    return host.startswith(("127.", "localhost:", "[::1]")) or host == "localhost"


def _options(address: str) -> tuple[tuple[str, int | str], ...]:
    proxy = 0 if is_loopback(address) else 1
    return (*_OPTIONS, ("grpc.enable_http_proxy", proxy))


def enrolment_channel(address: str, ca_pem: bytes) -> grpc.aio.Channel:
    """TLS to the enrol port: the server is checked against the CA, we have no certificate yet."""
    credentials = grpc.ssl_channel_credentials(root_certificates=ca_pem)
    return grpc.aio.secure_channel(address, credentials, options=_options(address))


def link_channel(address: str, identity: Identity) -> grpc.aio.Channel:
    """Mutual TLS to the link port."""
    credentials = grpc.ssl_channel_credentials(
        root_certificates=identity.ca_pem,
        private_key=identity.key_pem,
        certificate_chain=identity.certificate_pem,
    )
    return grpc.aio.secure_channel(address, credentials, options=_options(address))


def describe(error: grpc.aio.AioRpcError) -> str:
    """One line about a failed call."""
    details = (error.details() or "").partition("\n")[0]
    return f"{error.code().name.lower()}: {details}" if details else error.code().name.lower()
