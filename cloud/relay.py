"""Calls from outside to the engine's socket, as they are, after the caller's role was checked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

_COMMON_NAME = "x509_common_name"

# (service, method, is a stream both ways, who may call it)
_METHODS = (
    ("shoal.v1.Verifier", "Verify", True, "device"),
    ("shoal.v1.Inference", "Session", True, "gateway"),
    ("shoal.v1.EngineControl", "Describe", False, "gateway"),
)


@dataclass(frozen=True, slots=True)
class _Target:
    path: str
    role: str


def may_call(common_names: list[bytes], role: str) -> bool:
    """Whether the certificate's common name is `role:` and an id."""
    prefix = f"{role}:".encode()
    return (
        len(common_names) == 1 and common_names[0].startswith(prefix) and common_names[0] != prefix
    )


def add_relay(server: grpc.aio.Server, engine: grpc.aio.Channel) -> None:
    """Serve the engine's services; messages are not looked into."""
    for service, method, streams, role in _METHODS:
        target = _Target(f"/{service}/{method}", role)
        handler = _streaming(engine, target) if streams else _single(engine, target)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )


def _streaming(engine: grpc.aio.Channel, target: _Target) -> Any:
    call = engine.stream_stream(target.path)

    async def relay(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await _check(context, target.role)
        upstream = call(requests)
        try:
            async for reply in upstream:
                yield reply
        except grpc.aio.AioRpcError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"the engine: {error.code().name}")
        finally:
            upstream.cancel()

    return grpc.stream_stream_rpc_method_handler(relay)


def _single(engine: grpc.aio.Channel, target: _Target) -> Any:
    call = engine.unary_unary(target.path)

    async def relay(request: bytes, context: Any) -> Any:
        await _check(context, target.role)
        try:
            return await call(request, timeout=10)
        except grpc.aio.AioRpcError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"the engine: {error.code().name}")

    return grpc.unary_unary_rpc_method_handler(relay)


async def _check(context: Any, role: str) -> None:
    """End the call for any other role; TLS has checked the signature."""
    if not may_call(context.auth_context().get(_COMMON_NAME, []), role):
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, f"this call needs a certificate of a {role}"
        )
