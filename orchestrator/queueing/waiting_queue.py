"""All waiting requests of a hub: bounds, predicted waits, and who is refused instead."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from orchestrator.queueing import refusal
from orchestrator.queueing.drain_rate import DrainRate
from orchestrator.queueing.entry import Entry, Lane
from orchestrator.queueing.fair_queue import FairQueue
from shoal.errors import ShoalError


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds: requests and their prompts' bytes over all models, and anybody's wait."""

    max_requests: int = 512
    max_prompt_bytes: int = 64 * 2**20
    max_wait_ms: float = 60_000.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """What the full devices of a model are predicted to do.

    `gap_ms`: time from one place that comes free to the next, None when that cannot be
    known (all are loading). `ttft_ms`: from being sent to a device to the first token.
    `sure_share`: a predicted wait is a mean over strangers' output lengths; only who is
    predicted within this share of the time it has may wait, so that it is served in time.
    """

    gap_ms: float | None
    ttft_ms: float
    sure_share: float


class WaitingQueue:
    """Requests in the order of their turn; single-threaded."""

    def __init__(self, limits: QueueLimits | None = None) -> None:
        self._limits = limits or QueueLimits()
        self._queues: dict[str, FairQueue] = {}
        self._rates: dict[str, DrainRate] = {}
        self._ttft_ms: dict[str, float] = {}
        self._models: dict[str, str] = {}
        self._prompt_bytes = 0

    def __len__(self) -> int:
        return len(self._models)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._models

    @property
    def prompt_bytes(self) -> int:
        """UTF-8 bytes of all waiting prompts."""
        return self._prompt_bytes

    @property
    def models(self) -> tuple[str, ...]:
        """Models that somebody waits for."""
        return tuple(self._queues)

    def holds(self, lane: Lane) -> bool:
        """Whether a request waits for the same devices."""
        queue = self._queues.get(lane.model)
        return queue is not None and queue.holds(lane)

    def lengths(self) -> Mapping[str, int]:
        """Waiting requests by model."""
        return {model: len(queue) for model, queue in self._queues.items()}

    def offer(self, entry: Entry, backlog: Backlog, now_ms: float) -> list[Entry]:
        """Let the request wait; others that were put out for it, each to be refused.

        Raises ShoalError when it cannot be served in time, or no place is left to wait:
        then the tenant that holds most gives one up, so that one tenant's flood refuses
        only its own.
        """
        model = entry.lane.model
        queue = self._queues.get(model) or FairQueue()
        rate = self._rates.get(model)
        if rate is None and backlog.gap_ms is not None:
            rate = DrainRate(backlog.gap_ms, now_ms)
        wait_ms = self._predicted_wait_ms(queue, rate, entry, now_ms)
        allowed_ms = self._limits.max_wait_ms - (now_ms - entry.arrived_ms)
        if wait_ms is not None and wait_ms > allowed_ms:
            raise refusal.too_long(entry, wait_ms + backlog.ttft_ms, wait_ms - allowed_ms)
        left_ms = entry.latest_first_token_ms - now_ms
        ttft_ms = (wait_ms or 0.0) + backlog.ttft_ms
        sure_ms = backlog.sure_share * left_ms
        if ttft_ms > sure_ms:
            raise refusal.too_late(entry, ttft_ms, ttft_ms - sure_ms)
        put_out = self._make_room(entry, now_ms)
        self._queues[model] = queue
        if rate is not None:
            self._rates[model] = rate
        self._ttft_ms[model] = backlog.ttft_ms
        self._models[entry.request_id] = model
        self._prompt_bytes += entry.prompt_bytes
        queue.add(entry, now_ms)
        return put_out

    def next(self, model: str, now_ms: float, blocked: Collection[Lane] = ()) -> Entry | None:
        """Whose turn it is for the model; it goes on waiting until `take`."""
        queue = self._queues.get(model)
        return None if queue is None else queue.next(now_ms, blocked)

    def take(self, request_id: str, now_ms: float) -> Entry:
        """The request is being served: its tenant is charged and the pace measured."""
        model = self._models[request_id]
        entry = self._queues[model].take(request_id)
        rate = self._rates.get(model)
        if rate is not None:
            rate.departed(now_ms)
        self._left(entry)
        return entry

    def remove(self, request_id: str) -> bool:
        """The request ended while it waited; False when it did not wait."""
        model = self._models.get(request_id)
        entry = None if model is None else self._queues[model].remove(request_id)
        if entry is None:
            return False
        self._left(entry)
        return True

    def expired(self, now_ms: float) -> list[tuple[Entry, ShoalError]]:
        """Who cannot be served in time any more, with the refusals; they wait until removed."""
        found = []
        for model, queue in self._queues.items():
            ttft_ms = self._ttft_ms[model]
            for entry in queue:
                waited_ms = now_ms - entry.arrived_ms
                if now_ms + ttft_ms > entry.latest_first_token_ms:
                    late_ms = now_ms + ttft_ms - entry.latest_first_token_ms
                    found.append((entry, refusal.too_late(entry, waited_ms + ttft_ms, late_ms)))
                elif waited_ms > self._limits.max_wait_ms:
                    retry_ms = self._drain_ms(model, now_ms)
                    found.append((entry, refusal.waited_too_long(entry, waited_ms, retry_ms)))
        return found

    def full(self, entry: Entry, now_ms: float) -> ShoalError:
        """The refusal of who was put out for want of room."""
        return refusal.full(len(self), self._drain_ms(entry.lane.model, now_ms))

    def check_integrity(self) -> None:
        """Raise when a bound is broken or the parts disagree."""
        for queue in self._queues.values():
            queue.check_integrity()
        entries = [entry for queue in self._queues.values() for entry in queue]
        if {e.request_id for e in entries} != set(self._models):
            raise AssertionError("requests are lost")
        if sum(e.prompt_bytes for e in entries) != self._prompt_bytes:
            raise AssertionError("prompt bytes are miscounted")
        if any(not len(queue) for queue in self._queues.values()):
            raise AssertionError("an empty queue is kept")
        if len(self) > self._limits.max_requests:
            raise AssertionError("more wait than may")

    def _predicted_wait_ms(
        self, queue: FairQueue, rate: DrainRate | None, entry: Entry, now_ms: float
    ) -> float | None:
        if rate is None:
            return None
        return (queue.num_ahead(entry) + 1) * rate.gap_ms(now_ms)

    def _drain_ms(self, model: str, now_ms: float) -> float:
        """Predicted time until all who wait for the model now are served."""
        rate = self._rates.get(model)
        num = len(self._queues.get(model, ()))
        return 0.0 if rate is None else num * rate.gap_ms(now_ms)

    def _make_room(self, entry: Entry, now_ms: float) -> list[Entry]:
        """Put out what is too much, the largest tenants' least urgent first."""
        limits = self._limits
        put_out: list[Entry] = []
        if entry.prompt_bytes > limits.max_prompt_bytes:
            raise self.full(entry, now_ms)
        while (
            len(self) + 1 > limits.max_requests
            or self._prompt_bytes + entry.prompt_bytes > limits.max_prompt_bytes
        ):
            victim = self._victim(entry)
            if victim is None:
                # Whoever was put out already stays out: a larger prompt took several places.
                if put_out:
                    self._restore(put_out, now_ms)
                raise self.full(entry, now_ms)
            self.remove(victim.request_id)
            put_out.append(victim)
        return put_out

    def _victim(self, entry: Entry) -> Entry | None:
        """The last of the tenant that holds most for its weight; None: the newcomer's own."""
        held: dict[str, float] = {}
        for queue in self._queues.values():
            for tenant in queue.tenants():
                last = queue.least_urgent(tenant)
                held[tenant] = held.get(tenant, 0.0) + queue.num_of(tenant) / last.weight
        if not held:
            return None
        largest = max(held, key=held.__getitem__)
        own = held.get(entry.tenant, 0.0) + 1 / entry.weight
        if largest != entry.tenant and held[largest] <= own:
            return None
        lasts: Iterable[Entry] = (
            queue.least_urgent(largest) for queue in self._queues.values() if queue.num_of(largest)
        )
        last = max(lasts, key=lambda each: each.urgency_ms)
        if largest == entry.tenant and last.urgency_ms <= entry.urgency_ms:
            return None
        return last

    def _restore(self, entries: list[Entry], now_ms: float) -> None:
        for entry in entries:
            model = entry.lane.model
            self._queues.setdefault(model, FairQueue()).add(entry, now_ms)
            self._models[entry.request_id] = model
            self._prompt_bytes += entry.prompt_bytes

    def _left(self, entry: Entry) -> None:
        model = self._models.pop(entry.request_id)
        self._prompt_bytes -= entry.prompt_bytes
        if not len(self._queues[model]):
            del self._queues[model], self._ttft_ms[model]
            self._rates.pop(model, None)
