"""An HTTP application whose every failure has OpenAI's shape."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from shoal.crash import place_of
from shoal.errors import Reason, ShoalError
from shoal.http.bodies import error_response, json_response

_log = structlog.get_logger(__name__)


def make_application(routes: Sequence[BaseRoute]) -> Starlette:
    """An application of these routes; unknown paths and crashes answer in OpenAI's shape."""
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _http_exception, Exception: _crash},
    )
    # A path with a slash too many does not exist: a redirected POST would lose its body.
    app.router.redirect_slashes = False
    return app


async def _http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and wrong methods, in OpenAI's error shape."""
    status, allowed = 500, ""
    if isinstance(error, HTTPException):
        status, allowed = error.status_code, (error.headers or {}).get("Allow", "")
    path = ascii(request.scope["path"][:200])
    code, message = {
        404: ("not_found", f"There is no path {path} here. {_remedy(request.scope['path'])}"),
        405: ("method_not_allowed", f"{path} does not take {request.method}. Send {allowed}."),
    }.get(status, ("http_error", f"{request.method} {path} failed."))
    body = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return json_response({"error": body}, status, {"allow": allowed} if allowed else None)


def _remedy(path: str) -> str:
    """What most often leads to a path that does not exist."""
    if path.endswith("/") and path.strip("/"):
        return "Leave the slash at the end out."
    if not path.startswith(("/v1/", "/shoal/v1/")):
        return "OpenAI's paths begin with /v1/: a client's base_url ends in /v1."
    return "See the API's documentation."


async def _crash(request: Request, error: Exception) -> Response:
    _log.error("handler_crashed", path=request.url.path, cause=place_of(error))
    return error_response(ShoalError(Reason.INTERNAL, "The server failed on this request."))
