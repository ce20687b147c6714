"""One gateway's connection to one hub: all its requests on one stream."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import structlog

from shoal.errors import Reason, ShoalError
from shoal.http.generation import Mailbox, failed_update
from shoal.tasks import cancelled
from shoal.v1 import fleet_pb2, fleet_pb2_grpc, inference_pb2_grpc
from shoal.v1 import inference_pb2 as pb
from shoal.wire import CHANNEL_OPTIONS, HUB_TLS_NAME

_log = structlog.get_logger(__name__)

# A hub that restarts is back within a few seconds; dialling it often costs little.
_BACKOFF_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
_OPTIONS: Sequence[tuple[str, int | str]] = (
    *CHANNEL_OPTIONS,
    ("grpc.ssl_target_name_override", HUB_TLS_NAME),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM contents by which gateway and hub know each other."""

    ca_pem: bytes
    key_pem: bytes
    cert_pem: bytes

    def credentials(self) -> grpc.ChannelCredentials:
        """Credentials that present the certificate and trust only the fleet's CA."""
        return grpc.ssl_channel_credentials(self.ca_pem, self.key_pem, self.cert_pem)


class HubLink:
    """Keeps a session to a hub, dials again when it breaks, and knows the hub's summary.

    Lives in one event loop. When the session breaks, each request on it ends with
    a DEVICE_LOST failure; the hub cancels them on its side.
    """

    def __init__(self, address: str, tls: TlsFiles) -> None:
        self.address = address
        self.summary: fleet_pb2.HubSummary | None = None
        # Requests that were sent since the summary came, which it does not count.
        self.num_sent = 0
        # When the hub was last lost, in the event loop's time.
        self.lost_s = -math.inf
        self._tls = tls
        self._channel: grpc.aio.Channel | None = None
        self._mailboxes: dict[str, Mailbox] = {}
        self._commands: asyncio.Queue[pb.InferenceCommand] = asyncio.Queue()
        self._connected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether the hub answers now."""
        return self._connected.is_set()

    async def wait_connected(self) -> None:
        """Return when the hub answers."""
        await self._connected.wait()

    @property
    def fleet(self) -> fleet_pb2_grpc.FleetStub:
        """The hub's Fleet service; only after `start`."""
        return fleet_pb2_grpc.FleetStub(self._open_channel)  # type: ignore[no-untyped-call]

    @property
    def _open_channel(self) -> grpc.aio.Channel:
        if self._channel is None:
            raise RuntimeError(f"the link to {self.address} was not started")
        return self._channel

    def start(self) -> None:
        """Begin dialling; must be called in the event loop that the link is to live in."""
        if self._task is None:
            self._channel = grpc.aio.secure_channel(
                self.address, self._tls.credentials(), options=_OPTIONS
            )
            self._task = asyncio.create_task(self._keep_connected(), name=f"hub {self.address}")

    async def stop(self) -> None:
        """Close the session, which cancels every request on it."""
        if self._task is not None:
            await cancelled([self._task])
        if self._channel is not None:
            await self._channel.close()

    def submit(self, request: pb.GenerateRequest) -> Mailbox:
        """Send a request down; its updates come to the returned mailbox."""
        mailbox = Mailbox()
        self._mailboxes[request.request_id] = mailbox
        self.num_sent += 1
        self._commands.put_nowait(pb.InferenceCommand(submit=request))
        return mailbox

    def cancel(self, request_id: str) -> None:
        """Drop a request; nothing is sent when it has ended already."""
        if self._mailboxes.pop(request_id, None) is not None:
            self._commands.put_nowait(
                pb.InferenceCommand(cancel=pb.CancelRequest(request_id=request_id))
            )

    async def _keep_connected(self) -> None:
        attempt = 0
        while True:
            was_connected = await self._connect_once()
            attempt = 0 if was_connected else attempt + 1
            backoff_s = _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]
            # Jitter, so that many gateways do not dial a returning hub at once.
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311

    async def _connect_once(self) -> bool:
        """Run one session to its end; whether it ever worked."""
        self._commands = asyncio.Queue()
        inference = inference_pb2_grpc.InferenceStub(self._open_channel)  # type: ignore[no-untyped-call]
        session = inference.Session()
        tasks = [
            asyncio.create_task(self._watch()),
            asyncio.create_task(self._send(session)),
            asyncio.create_task(self._receive(session)),
        ]
        cause = ""
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            cause = "; ".join(sorted({_cause(task) for task in done}))
        finally:
            was_connected = self._connected.is_set()
            self._connected.clear()
            self.summary = None
            session.cancel()
            await cancelled(tasks)
            self._fail_all()
        if was_connected:
            self.lost_s = asyncio.get_running_loop().time()
            _log.warning("hub_connection_lost", hub=self.address, cause=cause)
        else:
            _log.debug("hub_unreachable", hub=self.address, cause=cause)
        return was_connected

    async def _watch(self) -> None:
        async for summary in self.fleet.WatchSummary(fleet_pb2.WatchSummaryRequest()):
            self.summary = summary
            self.num_sent = 0
            if not self._connected.is_set():
                _log.info("hub_connected", hub=self.address, hub_id=summary.hub_id)
                self._connected.set()

    async def _send(self, session: grpc.aio.StreamStreamCall) -> None:
        while True:
            await session.write(await self._commands.get())

    async def _receive(self, session: grpc.aio.StreamStreamCall) -> None:
        while True:
            frame = await session.read()
            if frame is grpc.aio.EOF:
                return
            for update in frame.updates:
                self._deliver(update)

    def _deliver(self, update: pb.SequenceUpdate) -> None:
        mailbox = self._mailboxes.get(update.request_id)
        if mailbox is None:
            return  # cancelled here while it was on its way
        if update.HasField("finished") or update.HasField("failed"):
            del self._mailboxes[update.request_id]
        mailbox.put(update)

    def _fail_all(self) -> None:
        error = ShoalError(
            Reason.DEVICE_LOST,
            "The connection to the fleet's hub was lost. Try again.",
            retry_after_ms=1_000,
        )
        mailboxes, self._mailboxes = self._mailboxes, {}
        for request_id, mailbox in mailboxes.items():
            mailbox.connection_lost = True
            mailbox.put(failed_update(request_id, error))


def _cause(task: asyncio.Task[None]) -> str:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return repr(error) if error else "closed by the hub"
