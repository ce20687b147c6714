"""The cloud backend: any OpenAI-compatible endpoints, streamed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from orchestrator.dispatch.backend import Account, Try
from orchestrator.dispatch.choosing import CloudRoute, EndpointChooser, able
from orchestrator.dispatch.cloud_attempt import CloudAttempt
from orchestrator.dispatch.cloud_http import EndpointClient
from orchestrator.dispatch.endpoint import CloudConfig
from orchestrator.dispatch.faults import EndpointFault
from orchestrator.dispatch.outbound import OutboundGate, OutboundPass
from orchestrator.dispatch.spending import Allowance, Spending
from shoal.errors import Reason, ShoalError
from shoal.http.generation import Mailbox, failed_update
from shoal.openai.tier_use import TierUse
from shoal.v1 import inference_pb2 as pb

_log = structlog.get_logger(__name__)

# An answer waits this long for its cost to be counted; the counting goes on without it.
SETTLE_WAIT_S = 1.0
_TIER = "cloud"


@dataclass(frozen=True, slots=True)
class CloudClocks:
    """Time and chance, so that tests can hold both."""

    monotonic: Callable[[], float] = time.monotonic
    unix: Callable[[], float] = time.time
    # Not a secret: it spreads load.
    dice: random.Random = random.Random()  # noqa: S311, RUF009 - one for all is meant


class CloudBackend:
    """Sends requests to the endpoints that serve their models; one HTTP client for each."""

    def __init__(
        self,
        config: CloudConfig,
        gate: OutboundGate,
        spending: Spending,
        clocks: CloudClocks | None = None,
    ) -> None:
        self.config = config
        self.gate = gate
        self.spending = spending
        self.clocks = clocks or CloudClocks()
        self.chooser = EndpointChooser(config.endpoints, self.clocks.dice)
        self._clients = {each.name: EndpointClient(each) for each in config.endpoints}
        self._background: set[asyncio.Task[None]] = set()

    @property
    def routes(self) -> Mapping[str, CloudRoute]:
        """The preferred route of each cloud model."""
        return {model: routes[0] for model, routes in self.chooser.routes.items()}

    def has_own(self, model: str) -> bool:
        """Whether an endpoint of the model counts as the fleet's edge."""
        return any(route.endpoint.own for route in self.chooser.routes.get(model, ()))

    def start(self, request: pb.GenerateRequest, *, patient: bool = True) -> CloudGeneration:
        """Begin; `request.model` must be one of `routes`.

        Not `patient`: fail rather than wait for an endpoint, for another tier can serve.
        """
        return CloudGeneration(self, request, patient=patient)

    def client(self, route: CloudRoute) -> EndpointClient:
        """Connections to the route's endpoint."""
        return self._clients[route.endpoint.name]

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that must outlive the request that started it."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def close(self) -> None:
        """Finish counting, close all connections."""
        self.gate.close()
        await asyncio.gather(*self._background, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self._clients.values()))


class CloudGeneration:
    """A sequence in the cloud; cancelling closes its HTTP connection."""

    tier = _TIER

    def __init__(
        self, backend: CloudBackend, request: pb.GenerateRequest, *, patient: bool
    ) -> None:
        self.account = Account()
        self._backend = backend
        self._request = request
        self._patient = patient
        self._clocks = backend.clocks
        self._mailbox = Mailbox()
        self._attempt: CloudAttempt | None = None
        self._task = asyncio.create_task(self._run(), name=f"cloud {request.request_id}")

    async def take(self) -> Sequence[pb.SequenceUpdate]:
        """See `Generation.take`."""
        return await self._mailbox.take()

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._task.cancel()

    def _put(self, **parts: Any) -> None:
        self._mailbox.put(pb.SequenceUpdate(request_id=self._request.request_id, **parts))

    def _fail(self, error: ShoalError) -> None:
        self._mailbox.put(failed_update(self._request.request_id, error))

    async def _run(self) -> None:
        try:
            order = self._backend.chooser.order(self._request.model)
            own = [route for route in order if route.endpoint.own]
            outbound = await self._backend.gate.admit(self._request, own=bool(own))
            order = able(own if outbound.own_only else order, self._request)
            allowance = await self._backend.spending.reserve(
                outbound, [route.model.price for route in order]
            )
            finished = await self._within(outbound, allowance, order)
        except EndpointFault as fault:
            self._fail(fault.error)
        except ShoalError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a reader must not wait for ever; logged
            _log.error("cloud_request_crashed", cause=type(error).__name__)
            self._fail(ShoalError(Reason.INTERNAL, "The gateway failed on this request."))
        else:
            self._put(finished=finished)

    async def _within(
        self, outbound: OutboundPass, allowance: Allowance, order: Sequence[CloudRoute]
    ) -> pb.Finished:
        """Try endpoints; whatever happens, what was used is counted."""
        try:
            return await self._try_all(outbound, allowance, order)
        finally:
            use = self.account.uses.get(_TIER, TierUse(0, 0, 0, self._backend.config.currency))
            settling = self._backend.in_background(self._backend.spending.settle(allowance, use))
            await asyncio.wait({settling}, timeout=SETTLE_WAIT_S)

    async def _try_all(
        self, outbound: OutboundPass, allowance: Allowance, order: Sequence[CloudRoute]
    ) -> pb.Finished:
        """One endpoint after another; after the last one, the first again, a little later."""
        limits = self._backend.config.retry
        began_s = self._clocks.monotonic()
        untried = list(order)
        last: EndpointFault | None = None
        pause_s = limits.first_pause_s
        while True:
            now_s = self._clocks.monotonic()
            route = self._backend.chooser.acquire(untried, now_s)
            if route is not None:
                untried.remove(route)
                try:
                    return await self._try_one(outbound, allowance, route)
                except EndpointFault as fault:
                    last = fault
                    if fault.final or self._has_output:
                        raise
                if len(self.account.tries) >= limits.max_tries:
                    raise last
                continue
            # Every endpoint has failed once more, or rests.
            wait_s = max(pause_s, self._backend.chooser.wait_s(order, now_s))
            waited_s = self._clocks.monotonic() - began_s
            if not self._patient or waited_s + wait_s > limits.max_wait_s:
                raise _given_up(last, self._request.model, wait_s)
            await asyncio.sleep(wait_s * self._clocks.dice.uniform(1.0, 1.1))
            pause_s = min(limits.max_pause_s, 2 * pause_s)
            untried = list(order)

    @property
    def _has_output(self) -> bool:
        return self._attempt is not None and self._attempt.num_deltas > 0

    async def _try_one(
        self, outbound: OutboundPass, allowance: Allowance, route: CloudRoute
    ) -> pb.Finished:
        breaker = self._backend.chooser.breaker(route)
        name = route.endpoint.name
        tried = Try(name, round(self._clocks.unix() * 1000))
        self.account.tries.append(tried)
        self._put(placed=self._placed(route))
        attempt = self._attempt = CloudAttempt(
            route, outbound, allowance, self._clocks, lambda delta: self._put(delta=delta)
        )
        told = False
        try:
            finished = await attempt.run(self._backend.client(route))
            breaker.succeeded()
            told = True
            return finished
        except EndpointFault as fault:
            breaker.faulted(fault, self._clocks.monotonic())
            told = True
            self.account.tries[-1] = Try(name, tried.started_unix_ms, fault.note)
            _log.warning("cloud_try_failed", endpoint=name, cause=fault.note)
            raise
        finally:
            if not told:
                breaker.released()
            use = attempt.use(self._backend.config.currency)
            so_far = self.account.uses.get(_TIER)
            self.account.uses[_TIER] = use if so_far is None else so_far.plus(use)

    def _placed(self, route: CloudRoute) -> pb.Placed:
        name = route.endpoint.name
        return pb.Placed(
            device_id=f"cloud:{name}",
            device_name=name,
            device_class="cloud",
            reason=f"{self._request.model} is served by the cloud endpoint {name}.",
            attempt=len(self.account.tries),
        )


def _given_up(last: EndpointFault | None, model: str, wait_s: float) -> ShoalError:
    """The last failure, or that nobody could be asked; with the time until it is worth it."""
    if last is None:
        return ShoalError(
            Reason.UPSTREAM,
            f"No cloud endpoint of {model} is asked now: each failed or wants to be left alone.",
            retry_after_ms=round(wait_s * 1000),
        )
    error = last.error
    return ShoalError(
        error.reason, error.message, retry_after_ms=max(error.retry_after_ms, round(wait_s * 1000))
    )
