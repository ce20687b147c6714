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
    status = error.status_code if isinstance(error, HTTPException) else 500
    known = {404: "not_found", 405: "method_not_allowed"}
    body = {
        "message": f"{request.method} {request.url.path[:200]!a}: see the API's documentation.",
        "type": "invalid_request_error",
        "param": None,
        "code": known.get(status, "http_error"),
    }
    return json_response({"error": body}, status)


async def _crash(request: Request, error: Exception) -> Response:
    _log.error("handler_crashed", path=request.url.path, cause=place_of(error))
    return error_response(ShoalError(Reason.INTERNAL, "The server failed on this request."))
