"""What the hub says of itself, made at most a few times a second however many ask."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from orchestrator.fleet.view import DeviceState, DeviceView
from orchestrator.fleet.view_store import ViewStore
from orchestrator.hub import convert
from orchestrator.hub.placement import Placement
from orchestrator.request import RouteRequest
from orchestrator.routing.router import Router
from shoal.v1 import fleet_pb2

# A gateway hears of a change within this time.
INTERVAL_S = 0.2
# In a large fleet later: at most this share of a core goes into summaries.
_SHARE = 0.05
# Devices with room, of which the fastest stands for the hub. Power of many choices: the
# best of 16 drawn is among the best tenth of all with 81 %.
_DRAWN = 16
# A short question's size, by which hubs are compared.
_PROMPT_BYTES, _ANSWER_TOKENS = 1_000, 64


class Summaries:
    """Makes HubSummary messages from the fleet's view."""

    def __init__(self, hub_id: str, views: ViewStore, placement: Placement, router: Router) -> None:
        self._hub_id = hub_id
        self._views = views
        self._placement = placement
        self._router = router
        self._rng = random.Random(0)  # noqa: S311 - not a secret
        self._made: tuple[int, str] | None = None
        self._summary = fleet_pb2.HubSummary()
        self._due_s = 0.0

    def current(self, now_s: float) -> fleet_pb2.HubSummary:
        """The newest summary; `now_s`: monotonic."""
        state = (self._views.version, self._placement.watch.condition)
        if state == self._made or now_s < self._due_s:
            return self._summary
        began_s = time.perf_counter()
        summary = self._make()
        self._due_s = now_s + (time.perf_counter() - began_s) / _SHARE
        self._made = state
        if summary != self._summary:
            self._summary = summary
        return self._summary

    def _make(self) -> fleet_pb2.HubSummary:
        views = self._views.fleet.devices.values()
        num_waiting = self._placement.num_waiting
        models, with_room = convert.model_summaries(views)
        for summary in models:
            self._expect(summary, with_room[summary.name])
        return fleet_pb2.HubSummary(
            hub_id=self._hub_id,
            ready_devices=sum(view.state is DeviceState.READY for view in views),
            models=models,
            running=self._placement.num_active - num_waiting,
            waiting=num_waiting,
            condition=self._placement.watch.condition,
        )

    def _expect(self, summary: fleet_pb2.ModelSummary, devices: Sequence[DeviceView]) -> None:
        if not devices:
            return
        drawn = devices
        if len(devices) > _DRAWN:
            drawn = self._rng.sample(devices, _DRAWN)
        request = RouteRequest("", "", summary.name, _PROMPT_BYTES, _ANSWER_TOKENS)
        best = self._router.best_of(request, drawn)
        summary.expected_ttft_ms = best.ttft_ms
        summary.expected_tpot_ms = best.tpot_ms
