"""Which endpoint is asked next for a model; the time and the dice are passed in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.dispatch.breaker import Breaker
from orchestrator.dispatch.endpoint import CloudEndpoint, CloudModel
from orchestrator.dispatch.faults import EndpointFault, FaultKind
from shoal.errors import Reason, ShoalError
from shoal.v1 import inference_pb2 as pb


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


@dataclass(frozen=True, slots=True)
class RouteBreaker:
    """A route's two breakers: what fails by the endpoint rests all of it, a model that it does
    not know rests alone.

    Whoever got True of `acquire` must tell the outcome, as to a `Breaker`.
    """

    endpoint: Breaker
    model: Breaker

    def acquire(self, now_s: float) -> bool:
        """Whether a request may go now."""
        if not self.model.acquire(now_s):
            return False
        if self.endpoint.acquire(now_s):
            return True
        self.model.released()
        return False

    def wait_s(self, now_s: float) -> float:
        """Seconds until asking again is worth it."""
        return max(self.endpoint.wait_s(now_s), self.model.wait_s(now_s))

    def succeeded(self) -> None:
        """The endpoint served the model."""
        self.endpoint.succeeded()
        self.model.succeeded()

    def faulted(self, fault: EndpointFault, now_s: float) -> None:
        """The try failed so."""
        of_model = fault.kind is FaultKind.NO_MODEL
        meant, other = (self.model, self.endpoint) if of_model else (self.endpoint, self.model)
        other.released()
        if fault.blames_endpoint:
            meant.failed(now_s)
        if fault.retry_after_s is not None:
            meant.rate_limited(now_s, fault.retry_after_s)
        elif not fault.blames_endpoint:
            meant.released()

    def released(self) -> None:
        """The request ended without saying anything of the endpoint."""
        self.endpoint.released()
        self.model.released()


def able(routes: Sequence[CloudRoute], request: pb.GenerateRequest) -> list[CloudRoute]:
    """Those that do all that is asked.

    Raises INVALID_ARGUMENT when there is none: a field is refused by name, never ignored.
    """
    fit = [route for route in routes if route.endpoint.takes_ignore_eos or not request.ignore_eos]
    if not fit:
        raise ShoalError(
            Reason.INVALID_ARGUMENT,
            f"'ignore_eos' is not known to the cloud endpoints of {request.model}.",
            param="ignore_eos",
        )
    return fit


def in_turn(routes: Sequence[CloudRoute], dice: random.Random) -> list[CloudRoute]:
    """All routes in the order to ask: by priority, equal ones drawn by weight.

    Drawn by exponential keys, so that each place in the order has the weights' odds
    (Efraimidis and Spirakis, 2006).
    """
    return sorted(routes, key=lambda r: (r.priority, dice.expovariate(1.0) / r.weight))


class EndpointChooser:
    """Knows every model's routes and their breakers."""

    def __init__(self, endpoints: Sequence[CloudEndpoint], dice: random.Random) -> None:
        self._dice = dice
        self._breakers: dict[tuple[str, str], RouteBreaker] = {}
        self._routes: dict[str, list[CloudRoute]] = {}
        for endpoint in endpoints:
            shared = Breaker(endpoint.breaker)
            for model in endpoint.models:
                of_route = RouteBreaker(shared, Breaker(endpoint.breaker))
                self._breakers[endpoint.name, model.name] = of_route
                self._routes.setdefault(model.name, []).append(CloudRoute(endpoint, model))
        for routes in self._routes.values():
            routes.sort(key=lambda route: route.priority)

    @property
    def routes(self) -> dict[str, list[CloudRoute]]:
        """Routes by model, the preferred first."""
        return self._routes

    def breaker(self, route: CloudRoute) -> RouteBreaker:
        """The breakers of the route's endpoint and of the model there."""
        return self._breakers[route.endpoint.name, route.model.name]

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
