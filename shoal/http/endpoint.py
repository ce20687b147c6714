"""`POST /v1/chat/completions` and `POST /v1/completions`, whoever serves them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from shoal.crash import place_of
from shoal.errors import Reason, ShoalError
from shoal.http.bodies import error_response, read_body, wait_for_disconnect
from shoal.http.choices import RunningChoices
from shoal.http.reply import send_answer, send_stream
from shoal.openai.body import parse_body
from shoal.openai.chat import parse_chat
from shoal.openai.completion import parse_completion
from shoal.openai.error import error_event
from shoal.openai.outcome import Outcome
from shoal.openai.request import TextRequest
from shoal.openai.sse import ResponseHead

_log = structlog.get_logger(__name__)

Parse = Callable[[dict[str, Any]], TextRequest]


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose request it is, under which id, and until when its answer is worth anything."""

    request_id: str
    tenant: str
    deadline_unix_ms: int


@dataclass(frozen=True, slots=True)
class TextRun:
    """What was started for one request; `ended` is called once, with the failure if any."""

    choices: RunningChoices
    outcomes: Sequence[Outcome]
    ended: Callable[[ShoalError | None], None]


class TextService(Protocol):
    """What the endpoints need of whoever serves."""

    @property
    def request_timeout_s(self) -> float:
        """A request that is not answered in this time fails with 504."""
        ...

    async def tenant(self, headers: Mapping[str, str]) -> str:
        """Whose request it is, by its headers; raises UNAUTHENTICATED."""
        ...

    def slot(self, tenant: str) -> AbstractContextManager[None]:
        """Hold a place for the block; raises OVERLOADED when none is free."""
        ...

    async def start(self, parsed: TextRequest, asked: Asked) -> TextRun:
        """Begin all choices; raises when the request is refused."""
        ...

    def failed(self, error: ShoalError) -> None:
        """An answer was an error."""
        ...


def text_routes(service: TextService) -> list[Route]:
    """Both endpoints."""
    chat = TextEndpoint(service, parse_chat, "chatcmpl-")
    completion = TextEndpoint(service, parse_completion, "cmpl-")
    return [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completion, methods=["POST"]),
    ]


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
        service = self._service
        request_id = self._id_prefix + uuid.uuid4().hex
        request = Request(scope, receive)
        reply = _Reply(scope, receive, send, service)
        work = asyncio.current_task()
        watch: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(service.request_timeout_s):
                tenant = await service.tenant(request.headers)
                parsed = self._parse(parse_body(await read_body(request)))
                watch = asyncio.create_task(wait_for_disconnect(receive))
                watch.add_done_callback(lambda task: _cancel_with(task, work))
                with service.slot(tenant):
                    await self._generate(parsed, (request_id, tenant), reply)
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
            message = f"The server failed on request {request_id}."
            await reply.fail(ShoalError(Reason.INTERNAL, message), request_id)
        finally:
            if watch is not None:
                watch.cancel()

    async def _generate(self, parsed: TextRequest, who: tuple[str, str], reply: _Reply) -> None:
        request_id, tenant = who
        now_s = time.time()
        deadline_unix_ms = int((now_s + self._service.request_timeout_s) * 1000)
        head = ResponseHead(request_id, parsed.model, int(now_s))
        run = await self._service.start(parsed, Asked(request_id, tenant, deadline_unix_ms))
        failure: ShoalError | None = None
        try:
            if parsed.stream:
                await send_stream(reply.send, head, parsed, (run.choices, run.outcomes))
            else:
                await send_answer(reply.send_response, head, parsed, (run.choices, run.outcomes))
        except ShoalError as error:
            failure = error
            raise
        finally:
            run.choices.cancel()
            run.ended(failure)


class _Reply:
    """The client's side of the connection; knows whether headers have gone out."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, service: TextService) -> None:
        self._service = service
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
        self._service.failed(error)
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
