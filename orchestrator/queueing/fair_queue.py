"""Whose turn it is: fair shares among tenants, urgency within one.

Start-time fair queueing (Goyal, Vin, Cheng 1996) over estimated tokens: each tenant has a
virtual time that grows by tokens/weight when one of its requests leaves the queue, and the
tenant with the least goes next. A tenant that had nothing waiting starts at the queue's
virtual time: it neither saves up a share nor pays for what it used while nobody waited.
So no tenant gets ahead by calling its own requests urgent.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator

from orchestrator.queueing.entry import Entry, Lane

_Key = tuple[float, int]
_MAX_FINISHED = 1_024


class _Tenant:
    """One tenant's waiting requests, most urgent first, in two bands."""

    __slots__ = ("bands", "virtual_tokens", "weight")

    def __init__(self, virtual_tokens: float) -> None:
        self.virtual_tokens = virtual_tokens
        self.weight = 1.0
        # Ordinary requests, and those that yield to them.
        self.bands: tuple[list[tuple[_Key, Entry]], list[tuple[_Key, Entry]]] = ([], [])

    def __len__(self) -> int:
        return len(self.bands[0]) + len(self.bands[1])


class FairQueue:
    """The waiting requests for one model; single-threaded."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._keys: dict[str, tuple[_Key, Entry]] = {}
        # (when it stops to yield, its key), soonest first.
        self._yielding: list[tuple[float, _Key, Entry]] = []
        self._lanes: dict[Lane, int] = {}
        self._virtual_tokens = 0.0
        # Virtual times of tenants with nothing waiting that are still ahead of the queue's.
        self._finished: dict[str, float] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Entry]:
        return iter([entry for _, entry in self._keys.values()])

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._keys

    def holds(self, lane: Lane) -> bool:
        """Whether a request waits for the same devices."""
        return lane in self._lanes

    def num_of(self, tenant: str) -> int:
        """Requests of the tenant."""
        found = self._tenants.get(tenant)
        return 0 if found is None else len(found)

    def tenants(self) -> Collection[str]:
        """Tenants with something waiting."""
        return self._tenants.keys()

    def add(self, entry: Entry, now_ms: float) -> None:
        """Let the request wait; its id must not wait already."""
        tenant = self._tenants.get(entry.tenant)
        if tenant is None:
            finished = self._finished.pop(entry.tenant, 0.0)
            tenant = self._tenants[entry.tenant] = _Tenant(max(self._virtual_tokens, finished))
        tenant.weight = entry.weight
        self._arrivals += 1
        key = (entry.urgency_ms, self._arrivals)
        self._keys[entry.request_id] = (key, entry)
        self._lanes[entry.lane] = self._lanes.get(entry.lane, 0) + 1
        yields = entry.priority < 0 and entry.yields_until_ms > now_ms
        bisect.insort(tenant.bands[yields], (key, entry), key=_key_of)
        if yields:
            bisect.insort(self._yielding, (entry.yields_until_ms, key, entry), key=_when_of)

    def next(self, now_ms: float, blocked: Collection[Lane] = ()) -> Entry | None:
        """Who goes next, of those whose lane is not blocked; it stays in the queue."""
        while self._yielding and self._yielding[0][0] <= now_ms:
            _, key, entry = self._yielding.pop(0)
            tenant = self._tenants[entry.tenant]
            _drop(tenant.bands[1], key)
            bisect.insort(tenant.bands[0], (key, entry), key=_key_of)
        for band in (0, 1):
            best: tuple[float, _Key, Entry] | None = None
            for tenant in self._tenants.values():
                first = _first(tenant.bands[band], blocked)
                if first is None:
                    continue
                if best is None or (tenant.virtual_tokens, first[0]) < best[:2]:
                    best = (tenant.virtual_tokens, *first)
            if best is not None:
                return best[2]
        return None

    def take(self, request_id: str) -> Entry:
        """The request leaves to be served, and its tenant's share is charged."""
        entry = self._keys[request_id][1]
        tenant = self._tenants[entry.tenant]
        self._virtual_tokens = max(self._virtual_tokens, tenant.virtual_tokens)
        tenant.virtual_tokens += entry.cost_tokens / entry.weight
        self._remove(entry)
        return entry

    def remove(self, request_id: str) -> Entry | None:
        """The request leaves unserved; None when it does not wait."""
        found = self._keys.get(request_id)
        if found is None:
            return None
        self._remove(found[1])
        return found[1]

    def num_ahead(self, entry: Entry) -> int:
        """How many of the waiting are expected to go before this one, which may be new.

        Its own tenant's more urgent ones, and of each other tenant what its share allows
        meanwhile.
        """
        key = self._keys[entry.request_id][0] if entry.request_id in self else None
        own_key = (entry.urgency_ms, self._arrivals + 1) if key is None else key
        tenant = self._tenants.get(entry.tenant)
        own = 0
        if tenant is not None:
            own = sum(bisect.bisect_left(band, own_key, key=_key_of) for band in tenant.bands)
        return own + sum(
            min(len(other), -int(-(own + 1) * other.weight // entry.weight))
            for name, other in self._tenants.items()
            if name != entry.tenant
        )

    def least_urgent(self, tenant: str) -> Entry:
        """The tenant's last in the order, who must have something waiting."""
        found = self._tenants[tenant]
        return (found.bands[1] or found.bands[0])[-1][1]

    def check_integrity(self) -> None:
        """Raise when the parts disagree."""
        in_bands = [e for t in self._tenants.values() for band in t.bands for _, e in band]
        if sorted(e.request_id for e in in_bands) != sorted(self._keys):
            raise AssertionError("bands and keys hold different requests")
        if sum(self._lanes.values()) != len(self._keys):
            raise AssertionError(f"lanes {self._lanes} of {len(self._keys)} requests")
        if len(self._yielding) != sum(len(t.bands[1]) for t in self._tenants.values()):
            raise AssertionError("other requests yield than wait in the second band")
        if any(not len(tenant) for tenant in self._tenants.values()):
            raise AssertionError("a tenant without requests is kept")

    def _remove(self, entry: Entry) -> None:
        key, _ = self._keys.pop(entry.request_id)
        tenant = self._tenants[entry.tenant]
        if not _drop(tenant.bands[0], key):
            _drop(tenant.bands[1], key)
            self._yielding = [each for each in self._yielding if each[1] != key]
        self._lanes[entry.lane] -= 1
        if not self._lanes[entry.lane]:
            del self._lanes[entry.lane]
        if not len(tenant):
            del self._tenants[entry.tenant]
            self._finished[entry.tenant] = tenant.virtual_tokens
        if not self._keys:
            self._finished.clear()
            self._virtual_tokens = 0.0
        elif len(self._finished) > _MAX_FINISHED:
            now = self._virtual_tokens
            self._finished = {name: at for name, at in self._finished.items() if at > now}


def _key_of(item: tuple[_Key, Entry]) -> _Key:
    return item[0]


def _when_of(item: tuple[float, _Key, Entry]) -> tuple[float, _Key]:
    return item[:2]


def _first(band: list[tuple[_Key, Entry]], blocked: Collection[Lane]) -> tuple[_Key, Entry] | None:
    if not blocked:
        return band[0] if band else None
    return next((item for item in band if item[1].lane not in blocked), None)


def _drop(band: list[tuple[_Key, Entry]], key: _Key) -> bool:
    place = bisect.bisect_left(band, key, key=_key_of)
    if place == len(band) or band[place][0] != key:
        return False
    del band[place]
    return True
