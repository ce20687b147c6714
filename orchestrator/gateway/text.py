"""`POST /v1/chat/completions` and `POST /v1/completions`."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from orchestrator.dispatch.dispatcher import Dispatcher
from orchestrator.gateway.admission import Admission
from orchestrator.gateway.auth import Authenticator
from orchestrator.gateway.choices import RunningChoices
from orchestrator.gateway.cloud_records import CloudRecords, CloudSequence
from orchestrator.gateway.http import error_response, read_body, wait_for_disconnect
from orchestrator.gateway.metrics import RequestMetrics
from orchestrator.gateway.rate_limits import RateLimits
from orchestrator.gateway.reply import send_answer, send_stream
from orchestrator.gateway.salt import TenantSalts
from orchestrator.gateway.state import state_calls
from shoal.crash import place_of
from shoal.errors import Reason, ShoalError
from shoal.openai.body import parse_body
from shoal.openai.error import error_event
from shoal.openai.outcome import Outcome
from shoal.openai.request import TextRequest
from shoal.openai.sse import ResponseHead
from shoal.openai.wire import Origin, to_generate_requests

_log = structlog.get_logger(__name__)

Parse = Callable[[dict[str, Any]], TextRequest]


@dataclass(frozen=True, slots=True)
class TextService:
    """What both endpoints need."""

    authenticator: Authenticator
    admission: Admission
    rate_limits: RateLimits
    dispatcher: Dispatcher
    salts: TenantSalts
    cloud_records: CloudRecords
    metrics: RequestMetrics
    request_timeout_s: float


class TextEndpoint:
    """One of the two endpoints, as an ASGI application.

    It is one rather than a Starlette handler because headers wait for the first
    token, and because a client that goes away must cancel the work at once.
    """

    def __init__(self, service: TextService, parse: Parse, id_prefix: str) -> None:
        self._service = service
        self._parse = parse
        self._id_prefix = id_prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request_id = self._id_prefix + uuid.uuid4().hex
        request = Request(scope, receive)
        reply = _Reply(scope, receive, send, self._service.metrics)
        work = asyncio.current_task()
        watch: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(self._service.request_timeout_s):
                with state_calls():
                    caller = await self._service.authenticator.caller(request.headers)
                parsed = self._parse(parse_body(await read_body(request)))
                watch = asyncio.create_task(wait_for_disconnect(receive))
                watch.add_done_callback(lambda task: _cancel_with(task, work))
                with self._service.admission.slot(caller.tenant):
                    await self._generate(parsed, (request_id, caller.tenant), reply)
        except asyncio.CancelledError:
            if work is None or watch is None or not watch.done():
                raise
            work.uncancel()  # the client has gone, and nobody else asked for the cancellation
        except ShoalError as error:
            await reply.fail(error, request_id)
        except TimeoutError:
            await reply.fail(_deadline_error(), request_id)
        except Exception as error:  # noqa: BLE001 - the client gets an answer; logged
            _log.error("request_crashed", request_id=request_id, cause=place_of(error))
            await reply.fail(
                ShoalError(Reason.INTERNAL, f"The gateway failed on request {request_id}."),
                request_id,
            )
        finally:
            if watch is not None:
                watch.cancel()

    async def _generate(self, parsed: TextRequest, who: tuple[str, str], reply: _Reply) -> None:
        request_id, tenant = who
        now_s = time.time()
        origin = Origin(
            request_id=request_id,
            tenant=tenant,
            tenant_salt=self._service.salts.salt(tenant),
            deadline_unix_ms=int((now_s + self._service.request_timeout_s) * 1000),
        )
        head = ResponseHead(request_id, parsed.model, int(now_s))
        messages = to_generate_requests(parsed, origin)
        dispatcher = self._service.dispatcher
        rulings = [await dispatcher.rule(message) for message in messages]
        grant = await self._service.rate_limits.admit(tenant, messages)
        for message in messages:
            message.tenant_weight = grant.weight
        starts = zip(messages, rulings, strict=True)
        choices = RunningChoices([dispatcher.start(message, ruling) for message, ruling in starts])
        outcomes = [
            Outcome(message.request_id, "edge", ruling.level.value)
            for message, ruling in zip(messages, rulings, strict=True)
        ]
        failure: ShoalError | None = None
        try:
            if parsed.stream:
                await send_stream(reply.send, head, parsed, (choices, outcomes))
            else:
                await send_answer(reply.send_response, head, parsed, (choices, outcomes))
        except ShoalError as error:
            failure = error
            raise
        finally:
            choices.cancel()
            self._service.rate_limits.settle(grant, outcomes)
            for generation, outcome in zip(choices.generations, outcomes, strict=True):
                self._service.metrics.ended(outcome, parsed.model, failure)
                if generation.tier == "cloud":
                    sequence = CloudSequence(tenant, parsed.model, outcome, generation.account)
                    self._service.cloud_records.keep(sequence, failure)


class _Reply:
    """The client's side of the connection; knows whether headers have gone out."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, metrics: RequestMetrics) -> None:
        self._metrics = metrics
        self._scope = scope
        self._receive = receive
        self._send = send
        self._streaming = False
        self._ended = False

    async def send(self, message: Mapping[str, Any]) -> None:
        """One ASGI message."""
        self._streaming = True
        await self._send(dict(message))
        self._ended = message["type"] == "http.response.body" and not message.get("more_body")

    async def send_response(self, response: Response) -> None:
        """A whole response."""
        self._streaming = self._ended = True
        await response(self._scope, self._receive, self._send)

    async def fail(self, error: ShoalError, request_id: str) -> None:
        """An error response, or an error event when the stream has begun."""
        _log.info("request_failed", request_id=request_id, code=error.reason.value)
        self._metrics.failed(error)
        if self._ended:
            return
        if self._streaming:
            await self.send({"type": "http.response.body", "body": error_event(error)})
        else:
            await self.send_response(error_response(error, {"x-shoal-request-id": request_id}))


def _cancel_with(watch: asyncio.Task[None], work: asyncio.Task[Any] | None) -> None:
    if work is not None and not watch.cancelled():
        work.cancel()


def _deadline_error() -> ShoalError:
    return ShoalError(Reason.DEADLINE_EXCEEDED, "The request took longer than the server allows.")
