"""Requests of this device's own clients: into the same engines' queues as the hub's.

They need no hub and outlive the loss of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from agent.rpc.bridge import Bridge
from agent.rpc.charging import Charging
from agent.rpc.engines import Engines
from agent.rpc.identity import Identity
from agent.session.requests import RequestLedger
from shoal.http.generation import Mailbox
from shoal.openai.tier_use import TierUse
from shoal.v1 import device_pb2
from shoal.v1 import inference_pb2 as pb


def placed_here(identity: Identity, capabilities: device_pb2.CapabilityReport) -> pb.Placed:
    """The update that tells a local client where its request went."""
    return pb.Placed(
        device_id=identity.device_id,
        device_name=identity.name,
        device_class=capabilities.device_class,
        emulated=capabilities.emulated,
        reason="asked of this device itself",
        attempt=1,
    )


class _NoCosts:
    """Nothing on this device costs money."""

    uses: MappingProxyType[str, TierUse] = MappingProxyType({})
    joules: MappingProxyType[str, float] = MappingProxyType({})
    cascade: None = None


class LocalGeneration:
    """One local sequence (`shoal.http.generation.Generation`)."""

    tier = "edge"
    account = _NoCosts()

    def __init__(self, mailbox: Mailbox, cancel: Callable[[], None]) -> None:
        self._mailbox = mailbox
        self._cancel = cancel

    async def take(self) -> Sequence[pb.SequenceUpdate]:
        """See `Generation.take`."""
        return await self._mailbox.take()

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._cancel()


class LocalRequests:
    """The local requests that run; one more user of the engines beside the hub's bridge."""

    def __init__(
        self,
        placed: pb.Placed,
        engines: Engines,
        charging: Charging,
        on_end: Callable[[], None],
    ) -> None:
        self.placed = placed
        self.reports = engines.reports
        self._ledger = RequestLedger()
        self._bridge = Bridge(self._ledger, engines.find, self._deliver, charging)
        self._mailboxes: dict[str, Mailbox] = {}
        self._on_end = on_end

    def __len__(self) -> int:
        return len(self._ledger)

    def start(self, request: pb.GenerateRequest) -> LocalGeneration:
        """Hand a request to its engine; a refusal comes as its only update."""
        request_id = request.request_id
        mailbox = self._mailboxes[request_id] = Mailbox()
        mailbox.put(pb.SequenceUpdate(request_id=request_id, placed=self.placed))
        self._bridge.take_command(pb.InferenceCommand(submit=request))
        return LocalGeneration(mailbox, lambda: self._cancel(request_id))

    def take_frame(self, frame: pb.InferenceFrame) -> None:
        """An engine's step: what is not of a local request is left to others."""
        self._bridge.take_frame(frame)

    def fail_model(self, model: str, message: str) -> None:
        """Fail what ran in an engine that is gone."""
        self._bridge.fail_model(model, message)

    def drain(self, reason: str) -> None:
        """Refuse new requests from now on; running ones go on."""
        self._ledger.drain(reason)

    def _cancel(self, request_id: str) -> None:
        if self._mailboxes.pop(request_id, None) is not None:
            cancel = pb.CancelRequest(request_id=request_id)
            self._bridge.take_command(pb.InferenceCommand(cancel=cancel))
            self._on_end()

    def _deliver(self, frame: pb.InferenceFrame) -> None:
        for update in frame.updates:
            mailbox = self._mailboxes.get(update.request_id)
            if mailbox is None:
                continue
            mailbox.put(update)
            if update.HasField("finished") or update.HasField("failed"):
                del self._mailboxes[update.request_id]
                self._on_end()
