"""The edge backend: requests to the fleet's devices, through its hubs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from orchestrator.dispatch.backend import Account, has_output
from orchestrator.dispatch.hub_choice import HubOffer, best_offer, conversation_key, offer_of
from orchestrator.dispatch.hub_link import HubLink
from shoal.errors import Reason, ShoalError
from shoal.http.generation import Mailbox, failed_update
from shoal.v1 import fleet_pb2
from shoal.v1 import inference_pb2 as pb

# A hub's process restarts within this time; longer, and the client is better told.
HUB_WAIT_S = 5.0
# The first hub, and others when it is lost or cannot serve before the first token.
_MAX_HUBS_TRIED = 3
# After a hub was lost its devices are back, there or at another, within this time.
_SETTLE_S = 15.0
_POLL_S = 0.1
# What a hub says that knows no device (yet).
_KNOWS_NONE = frozenset({Reason.NO_DEVICE, Reason.MODEL_NOT_FOUND})
# What a hub says when its devices cannot serve: another hub's may.
_ASK_ANOTHER = frozenset(
    {
        Reason.NO_DEVICE,
        Reason.MODEL_NOT_FOUND,
        Reason.OVERLOADED,
        Reason.DRAINING,
        Reason.DEVICE_LOST,
        Reason.ENGINE_CRASHED,
        Reason.SLO_UNREACHABLE,
    }
)

# Id of the hub that a device (id or name) is connected to; empty: not known.
HubOf = Callable[[str], Awaitable[str]]


class EdgeBackend:
    """Chooses a hub from the hubs' summaries; the hub chooses the device.

    `links` changes while hubs come and go.
    """

    def __init__(
        self,
        links: Sequence[HubLink],
        hub_wait_s: float = HUB_WAIT_S,
        hub_of: HubOf | None = None,
    ) -> None:
        self.links = list(links)
        self.hub_wait_s = hub_wait_s
        self.hub_of = hub_of

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

    def best_link(
        self, request: pb.GenerateRequest, tried: Sequence[HubLink] = ()
    ) -> HubLink | None:
        """The connected hub that serves the request best, one that was not tried if possible."""
        connected = [link for link in self.links if link.connected]
        links = [link for link in connected if link not in tried] or connected
        if len(links) < 2:
            return links[0] if links else None
        offers = [_offer(link, request) for link in links]
        return links[best_offer(offers, conversation_key(request))]

    def link_to(self, hub_id: str) -> HubLink | None:
        """The connected link to this hub."""
        for link in self.links:
            if link.summary is not None and link.summary.hub_id == hub_id:
                return link
        return None

    def other_link(self, request: pb.GenerateRequest, tried: Sequence[HubLink]) -> HubLink | None:
        """A hub that was not tried and has a device ready for the request."""
        links = [
            link
            for link in self.links
            if link.connected and link not in tried and _offer(link, request).ready_devices
        ]
        return self.best_link(request, tried) if links else None

    @property
    def unsettled(self) -> bool:
        """Whether devices may be on their way from a hub that was lost."""
        now_s = asyncio.get_running_loop().time()
        return any(now_s - link.lost_s < _SETTLE_S for link in self.links)

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


def _offer(link: HubLink, request: pb.GenerateRequest) -> HubOffer:
    return offer_of(link.summary, request, link.num_sent)


class EdgeGeneration:
    """A sequence on the edge.

    It moves to another hub, before any output, when its hub is lost or says that no
    device of its own can serve it.
    """

    tier = "edge"

    def __init__(self, backend: EdgeBackend, request: pb.GenerateRequest) -> None:
        # Devices tell their usage in the last update, and cost no money.
        self.account = Account()
        self._backend = backend
        self._request = request
        self._link: HubLink | None = None
        self._mailbox: Mailbox | None = None
        self._tried: list[HubLink] = []
        self._has_output = False
        if not self._is_bound:
            self._submit(backend.best_link(request))

    @property
    def _is_bound(self) -> bool:
        """Whether only one hub can serve it, which the registry must be asked for."""
        several = len(self._backend.links) > 1
        return bool(self._request.hints.device) and several and self._backend.hub_of is not None

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
            if self._has_output or len(self._tried) >= _MAX_HUBS_TRIED:
                return updates
            # What waited in a hub that is lost is submitted again, there or to another.
            if self._mailbox.connection_lost:
                self._mailbox = None
            elif not await self._goes_elsewhere(updates[-1]):
                return updates

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        if self._link is not None:
            self._link.cancel(self._request.request_id)

    def _submit(self, link: HubLink | None) -> None:
        self._link = link
        if link is not None:
            self._tried.append(link)
            self._mailbox = link.submit(self._request)

    async def _connect(self) -> bool:
        if not await self._backend.wait_for_link():
            return False
        link = await self._owners_link() if self._is_bound else None
        self._submit(link or self._backend.best_link(self._request, self._tried))
        return True

    async def _owners_link(self) -> HubLink | None:
        hub_of = self._backend.hub_of
        if hub_of is None:
            return None
        return self._backend.link_to(await hub_of(self._request.hints.device))

    async def _goes_elsewhere(self, last: pb.SequenceUpdate) -> bool:
        """Submit to another hub when this one failed it and the other may not."""
        if not last.HasField("failed"):
            return False
        reason = ShoalError.from_wire(last.failed).reason
        if reason not in _ASK_ANOTHER:
            return False
        link = await self._link_elsewhere(self._tried)
        if link is None and reason in _KNOWS_NONE and self._backend.unsettled:
            link = await self._settled_link()
        if link is not None:
            self._submit(link)
        return link is not None

    async def _link_elsewhere(self, tried: Sequence[HubLink]) -> HubLink | None:
        if self._is_bound:
            link = await self._owners_link()
            return None if link in tried else link
        return self._backend.other_link(self._request, tried)

    async def _settled_link(self) -> HubLink | None:
        """Wait until the devices of a lost hub are somewhere again."""
        deadline_s = asyncio.get_running_loop().time() + self._backend.hub_wait_s
        while asyncio.get_running_loop().time() < deadline_s:
            link = await self._link_elsewhere(())
            if link is not None:
                return link
            await asyncio.sleep(_POLL_S)
        return None
