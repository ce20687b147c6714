"""What a bare device fetches: the install script and the files that it lists. No key needed."""

from __future__ import annotations

from pathlib import Path

import structlog
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from shoal.errors import Reason, ShoalError
from shoal.http.bodies import error_response
from shoal.onboarding.depot import SUMS_NAME, Depot, load_depot
from shoal.onboarding.lines import FILES_PATH, SCRIPT_PATH
from shoal.onboarding.releases import find_file

_log = structlog.get_logger(__name__)

# A proxy that kept an old list would let every device fail its hash check.
_HEADERS = {"cache-control": "no-cache", "x-content-type-options": "nosniff"}


def open_depot(folder: Path | None) -> Depot | None:
    """What was packed when the fleet started; None when there is nothing."""
    if folder is None:
        return None
    try:
        return load_depot(folder)
    except (OSError, ValueError, KeyError) as error:
        _log.warning("depot_unreadable", folder=str(folder), error=str(error))
        return None


def onboarding_routes(depot: Depot | None) -> list[Route]:
    """The script, the list of files, and the files; none without a depot."""
    if depot is None:
        return []

    async def script(_request: Request) -> Response:
        return Response(depot.script, media_type="text/x-shellscript", headers=_HEADERS)

    async def sums(_request: Request) -> Response:
        return Response(depot.sums, media_type="text/plain", headers=_HEADERS)

    async def file(request: Request) -> Response:
        # Looked up in the list, never joined to a folder: no path leads out of it.
        found = find_file(depot, request.path_params["name"])
        if found is None or not found.path.is_file():
            return error_response(
                ShoalError(Reason.MODEL_NOT_FOUND, f"Devices fetch what {SUMS_NAME} lists.")
            )
        return FileResponse(found.path, media_type="application/octet-stream", headers=_HEADERS)

    return [
        Route(SCRIPT_PATH, script),
        Route(f"{FILES_PATH}/{SUMS_NAME}", sums),
        Route(FILES_PATH + "/{name:path}", file),
    ]
