"""The OpenAI-compatible API of one replica, for gateways that know the fleet's key."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cloud.engine import HostedEngine
from cloud.keys import REFUSAL, bears_key
from shoal.errors import Reason, ShoalError
from shoal.hosted import SALT_HEADER, HostedModel
from shoal.http.application import make_application
from shoal.http.bodies import error_response, json_response
from shoal.http.choices import RunningChoices
from shoal.http.endpoint import Asked, TextRun, text_routes
from shoal.openai.models import model_object
from shoal.openai.outcome import Outcome
from shoal.openai.request import TextRequest
from shoal.openai.wire import Origin, to_generate_requests

_MAX_SALT_BYTES = 64
# A model that could not be loaded is not tried again sooner: what was wrong seldom mends itself.
LOAD_REST_S = 300.0


@dataclass(slots=True)
class LoadState:
    """Why the model could not be loaded and when that was; no reason: it is loaded.

    `retire` ends the replica, so that a new one tries again.
    """

    retire: Callable[[], None]
    reason: str = ""
    failed_s: float = 0.0

    def failed(self, reason: str) -> None:
        """From now on every request is answered with the reason."""
        self.reason, self.failed_s = reason, time.monotonic()

    def check(self) -> None:
        """Raises ENGINE_CRASHED with the reason; the first one asked after a rest retires, too."""
        if self.reason:
            left_s = self.failed_s + LOAD_REST_S - time.monotonic()
            if left_s <= 0:
                self.retire()
            wait_ms = round(1e3 * max(1.0, left_s))
            raise ShoalError(Reason.ENGINE_CRASHED, self.reason, retry_after_ms=wait_ms)


@dataclass(frozen=True, slots=True)
class HostedText:
    """A `TextService` (`shoal.http.endpoint`) over one engine.

    `key_sha256`: hex; who sends a key of this hash is the fleet's gateway. Serve bounds
    the requests at once.
    """

    engine: HostedEngine
    model: HostedModel
    key_sha256: str
    load: LoadState = field(default_factory=lambda: LoadState(lambda: None))
    request_timeout_s: float = 600.0

    async def tenant(self, headers: Mapping[str, str]) -> str:
        """The tenant's salt stands for the tenant; raises UNAUTHENTICATED."""
        if not bears_key(headers, self.key_sha256):
            raise ShoalError(Reason.UNAUTHENTICATED, REFUSAL)
        return headers.get(SALT_HEADER, "")

    def slot(self, tenant: str) -> AbstractContextManager[None]:
        """Nothing to hold: Serve and the engine's queue have bounds."""
        return contextlib.nullcontext()

    def failed(self, error: ShoalError) -> None:
        """Nothing to count: the gateway counts."""

    async def start(self, parsed: TextRequest, asked: Asked) -> TextRun:
        """Put every choice into the engine's queue. Raises ENGINE_CRASHED without a model."""
        self.load.check()
        origin = Origin(
            request_id=asked.request_id,
            tenant=asked.tenant,
            tenant_salt=_salt(asked.tenant),
            deadline_unix_ms=asked.deadline_unix_ms,
        )
        if parsed.model != self.model.name:
            raise ShoalError(
                Reason.MODEL_NOT_FOUND, f"Only {self.model.name} is served here.", param="model"
            )
        messages = to_generate_requests(parsed, origin)
        outcomes = [Outcome(message.request_id, "cloud") for message in messages]
        choices = RunningChoices([self.engine.submit(message) for message in messages])
        return TextRun(choices, outcomes, lambda _failure: None)


def _salt(text: str) -> bytes:
    try:
        return bytes.fromhex(text)[:_MAX_SALT_BYTES]
    except ValueError:
        raise ShoalError(
            Reason.INVALID_ARGUMENT, f"{SALT_HEADER} must be hexadecimal.", param=SALT_HEADER
        ) from None


def hosted_application(service: HostedText, lifespan: object = None) -> Starlette:
    """Chat, completions, models."""
    started_unix_s = int(time.time())

    async def models(request: Request) -> Response:
        try:
            await service.tenant(request.headers)
        except ShoalError as error:
            return error_response(error)
        data = [model_object(service.model.name, started_unix_s, "shoal")]
        return json_response({"object": "list", "data": data})

    app = make_application([*text_routes(service), Route("/v1/models", models)])
    if lifespan is not None:
        app.router.lifespan_context = lifespan  # type: ignore[assignment]
    return app
