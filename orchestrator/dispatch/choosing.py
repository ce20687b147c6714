"""Which endpoint is asked next for a model; the time and the dice are passed in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.dispatch.breaker import Breaker
from orchestrator.dispatch.endpoint import CloudEndpoint, CloudModel


@dataclass(frozen=True, slots=True)
class CloudRoute:
    """A cloud model and an endpoint that serves it."""

    endpoint: CloudEndpoint
    model: CloudModel

    @property
    def priority(self) -> int:
        """Lower is asked first."""
        own = self.model.priority
        return self.endpoint.priority if own is None else own

    @property
    def weight(self) -> float:
        """Share among routes of equal priority."""
        return self.endpoint.weight if self.model.weight is None else self.model.weight


def in_turn(routes: Sequence[CloudRoute], dice: random.Random) -> list[CloudRoute]:
    """All routes in the order to ask: by priority, equal ones drawn by weight.

    Drawn by exponential keys, so that each place in the order has the weights' odds
    (Efraimidis and Spirakis, 2006).
    """
    return sorted(routes, key=lambda r: (r.priority, dice.expovariate(1.0) / r.weight))


class EndpointChooser:
    """Knows every model's routes and every endpoint's breaker."""

    def __init__(self, endpoints: Sequence[CloudEndpoint], dice: random.Random) -> None:
        self._dice = dice
        self._breakers = {each.name: Breaker(each.breaker) for each in endpoints}
        self._routes: dict[str, list[CloudRoute]] = {}
        for endpoint in endpoints:
            for model in endpoint.models:
                self._routes.setdefault(model.name, []).append(CloudRoute(endpoint, model))
        for routes in self._routes.values():
            routes.sort(key=lambda route: route.priority)

    @property
    def routes(self) -> dict[str, list[CloudRoute]]:
        """Routes by model, the preferred first."""
        return self._routes

    def breaker(self, route: CloudRoute) -> Breaker:
        """The breaker of the route's endpoint."""
        return self._breakers[route.endpoint.name]

    def order(self, model: str) -> list[CloudRoute]:
        """The model's routes in this request's order."""
        return in_turn(self._routes[model], self._dice)

    def acquire(self, order: Sequence[CloudRoute], now_s: float) -> CloudRoute | None:
        """The first of these whose breaker lets a request through, which is then under way."""
        for route in order:
            if self.breaker(route).acquire(now_s):
                return route
        return None

    def wait_s(self, order: Sequence[CloudRoute], now_s: float) -> float:
        """Seconds until one of these may be asked."""
        return min(self.breaker(route).wait_s(now_s) for route in order)
