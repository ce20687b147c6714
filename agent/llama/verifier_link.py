"""The way from a device's engine to a cloud node's verifier: dialled out, mutual TLS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from agent.speculative.learning import Profile
from shoal.errors import Reason, ShoalError
from shoal.v1 import verify_pb2 as pb
from shoal.v1 import verify_pb2_grpc
from shoal.wire import CHANNEL_OPTIONS, CLOUD_TLS_NAME

# A verifier that failed is not asked again for so long.
_REST_S = 10.0
# Refusals that say something of the node, and not of the one sequence.
_OF_THE_NODE = frozenset({Reason.OVERLOADED, Reason.DRAINING, Reason.ENGINE_CRASHED})
_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.ssl_target_name_override", CLOUD_TLS_NAME),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class VerifierLostError(Exception):
    """The verifier cannot be used (further); the text says why, without any prompt."""


class VerifierRefusedError(VerifierLostError):
    """The verifier serves, but not this sequence: others may be asked of it at once."""


class VerifierStream:
    """One sequence at a verifier."""

    def __init__(
        self, call: grpc.aio.StreamStreamCall[pb.VerifyRequest, pb.VerifyReply], timeout_s: float
    ) -> None:
        self._call = call
        self._timeout_s = timeout_s

    async def send(self, request: pb.VerifyRequest) -> None:
        """Raises VerifierLostError."""
        with _as_lost():
            async with asyncio.timeout(self._timeout_s):
                await self._call.write(request)

    async def opened(self) -> pb.Opened:
        """The answer to the opening. Raises VerifierLostError."""
        return (await self._reply("opened")).opened

    async def verdict(self) -> pb.Verdict:
        """The next verdict. Raises VerifierLostError."""
        return (await self._reply("verdict")).verdict

    async def _reply(self, wanted: str) -> pb.VerifyReply:
        reply: Any
        with _as_lost():
            async with asyncio.timeout(self._timeout_s):
                reply = await self._call.read()
        if reply is grpc.aio.EOF:
            raise VerifierLostError("it closed the stream")
        if reply.HasField("failed"):
            error = ShoalError.from_wire(reply.failed)
            # Only what we know to be its own words and no prompt's.
            detail = f" ({error.param})" if error.reason is Reason.INVALID_ARGUMENT else ""
            of_node = error.reason in _OF_THE_NODE
            kind = VerifierLostError if of_node else VerifierRefusedError
            raise kind(f"it refused: {error.reason.value}{detail}")
        if reply.WhichOneof("reply") != wanted:
            raise VerifierLostError("it answered out of turn")
        answer: pb.VerifyReply = reply
        return answer


class VerifierLinks:
    """Channels to verifiers by address, what is known of each, and which of them rest."""

    def __init__(self, identity: Path | None) -> None:
        """`identity`: the folder of the device's key, certificate and authority."""
        self._identity = identity
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._resting_until_s: dict[str, float] = {}
        self._profiles: dict[tuple[str, str], Profile] = {}

    def profile(self, address: str, model: str) -> Profile:
        """What was learned of a verifier's model so far."""
        return self._profiles.setdefault((address, model), Profile())

    @contextlib.asynccontextmanager
    async def open(self, address: str, timeout_s: float) -> AsyncIterator[VerifierStream]:
        """A stream to the verifier at host:port. Raises VerifierLostError."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._resting_until_s.get(address, 0.0):
            raise VerifierLostError("it failed a moment ago")
        stub = verify_pb2_grpc.VerifierStub(self._channel(address))  # type: ignore[no-untyped-call]
        call = stub.Verify()
        try:
            yield VerifierStream(call, timeout_s)
        except VerifierRefusedError:
            raise
        except VerifierLostError:
            self._resting_until_s[address] = asyncio.get_running_loop().time() + _REST_S
            raise
        finally:
            call.cancel()

    async def close(self) -> None:
        """Hang up everywhere."""
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = grpc.aio.secure_channel(address, self._credentials(), options=_OPTIONS)
            self._channels[address] = channel
        return channel

    def _credentials(self) -> grpc.ChannelCredentials:
        folder = self._identity
        if folder is None:
            raise VerifierLostError("this engine has no identity to show it")
        try:
            ca_pem, key_pem, certificate_pem = (
                (folder / name).read_bytes() for name in ("ca.crt", "device.key", "device.crt")
            )
        except OSError as error:
            raise VerifierLostError("the device's identity cannot be read") from error
        return grpc.ssl_channel_credentials(ca_pem, key_pem, certificate_pem)


@contextlib.contextmanager
def _as_lost() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise VerifierLostError("it was silent for too long") from error
    except grpc.aio.AioRpcError as error:
        raise VerifierLostError(f"the stream broke: {error.code().name.lower()}") from error
    except asyncio.InvalidStateError as error:
        raise VerifierLostError("the stream is closed") from error
