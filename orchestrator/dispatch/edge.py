"""The edge backend: requests to the fleet's devices, through its hubs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from orchestrator.dispatch.backend import Account, has_output
from orchestrator.dispatch.hub_link import HubLink
from shoal.errors import Reason, ShoalError
from shoal.http.generation import Mailbox, failed_update
from shoal.v1 import fleet_pb2
from shoal.v1 import inference_pb2 as pb

# A hub's process restarts within this time; longer, and the client is better told.
HUB_WAIT_S = 5.0
# The first hub, and one more when it is lost before the first token.
_MAX_HUBS_TRIED = 2


class EdgeBackend:
    """Chooses a hub from the hubs' summaries; the hub chooses the device."""

    def __init__(self, links: Sequence[HubLink], hub_wait_s: float = HUB_WAIT_S) -> None:
        self.links = links
        self.hub_wait_s = hub_wait_s

    @property
    def connected(self) -> bool:
        """Whether any hub answers."""
        return any(link.connected for link in self.links)

    def summaries(self) -> list[fleet_pb2.HubSummary]:
        """What the connected hubs last said of themselves."""
        return [link.summary for link in self.links if link.summary is not None]

    def start(self, request: pb.GenerateRequest) -> EdgeGeneration:
        """Begin on the best hub; when none is connected yet, the first to come."""
        return EdgeGeneration(self, request)

    def best_link(self, model: str) -> HubLink | None:
        """The connected hub with a ready device for the model, most free slots first."""
        connected = [link for link in self.links if link.connected]
        return max(connected, key=lambda link: _fitness(link, model), default=None)

    async def wait_for_link(self) -> bool:
        """Whether a hub is connected within the time that waiting is worth."""
        waits = [asyncio.create_task(link.wait_connected()) for link in self.links]
        if not waits:
            return False
        try:
            done, _ = await asyncio.wait(
                waits, timeout=self.hub_wait_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for wait in waits:
                wait.cancel()
        return bool(done)


def _fitness(link: HubLink, model: str) -> tuple[int, int, int]:
    summary = link.summary or fleet_pb2.HubSummary()
    entries: Iterable[fleet_pb2.ModelSummary] = (m for m in summary.models if m.name == model)
    entry = next(iter(entries), fleet_pb2.ModelSummary())
    return (min(entry.ready_devices, 1), entry.free_slots, -summary.waiting)


class EdgeGeneration:
    """A sequence on the edge; moves to another hub when its hub is lost before any output."""

    tier = "edge"

    def __init__(self, backend: EdgeBackend, request: pb.GenerateRequest) -> None:
        # Devices tell their usage in the last update, and cost no money.
        self.account = Account()
        self._backend = backend
        self._request = request
        self._link: HubLink | None = None
        self._mailbox: Mailbox | None = None
        self._hubs_tried = 0
        self._has_output = False
        self._submit()

    async def take(self) -> Sequence[pb.SequenceUpdate]:
        """See `Generation.take`."""
        while True:
            if self._mailbox is None and not await self._connect():
                error = ShoalError(
                    Reason.NO_DEVICE,
                    "No hub of the fleet is reachable. Try again soon.",
                    retry_after_ms=2_000,
                )
                return [failed_update(self._request.request_id, error)]
            if self._mailbox is None:
                continue
            updates = await self._mailbox.take()
            self._has_output = self._has_output or has_output(updates)
            # A hub fails requests itself over to other devices; only its own loss is ours.
            hub_lost = self._mailbox.connection_lost and not self._has_output
            if hub_lost and self._hubs_tried < _MAX_HUBS_TRIED:
                self._mailbox = None
                continue
            return updates

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        if self._link is not None:
            self._link.cancel(self._request.request_id)

    def _submit(self) -> None:
        self._link = self._backend.best_link(self._request.model)
        if self._link is not None:
            self._hubs_tried += 1
            self._mailbox = self._link.submit(self._request)

    async def _connect(self) -> bool:
        if not await self._backend.wait_for_link():
            return False
        self._submit()
        return True
