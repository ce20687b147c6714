"""The HTTP client of one cloud endpoint: nothing is sent without an `OutboundPass`.

Every way in which an answer can go wrong ends as an `EndpointFault`, in bounded time
and memory.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path

import httpx

from orchestrator.dispatch.endpoint import CloudEndpoint, Salt
from orchestrator.dispatch.faults import EndpointFault, FaultKind
from orchestrator.dispatch.outbound import OutboundPass, checked
from shoal.hosted import SALT_HEADER
from shoal.openai.upstream import error_text, upstream_body

_MAX_ERROR_BODY_BYTES = 64 * 1024
# A line of a stream is one chunk; endpoints send far shorter ones.
_MAX_LINE_BYTES = 1024 * 1024
# A token with its log-probabilities is about a kilobyte; this is 100,000 of them.
_MAX_ANSWER_BYTES = 128 * 1024 * 1024
_SEND_TIMEOUT_S = 30.0
# What may follow `[DONE]` so that the connection can be used again; not worth more.
_END_TIMEOUT_S = 0.2
_DEFAULT_RETRY_AFTER_S = 1.0
_MAX_RETRY_AFTER_S = 3600.0
_BY_STATUS = {
    400: FaultKind.BAD_REQUEST,
    413: FaultKind.BAD_REQUEST,
    422: FaultKind.BAD_REQUEST,
    401: FaultKind.BAD_KEY,
    403: FaultKind.BAD_KEY,
    404: FaultKind.NO_MODEL,
    429: FaultKind.RATE_LIMITED,
}

# Takes one parsed event; True: enough has come.
TakeChunk = Callable[[object], bool]


@dataclass(frozen=True, slots=True)
class Ask:
    """How a request is put to this endpoint; `limit_s`: seconds left for all of it."""

    upstream_model: str
    max_tokens: int | None
    limit_s: float


class EndpointClient:
    """Connections to one endpoint."""

    def __init__(self, endpoint: CloudEndpoint) -> None:
        self._name = endpoint.name
        self._timeouts = endpoint.timeouts
        self._salt = endpoint.salt
        self._own = endpoint.own
        headers = {"accept": "text/event-stream", "accept-encoding": "identity"}
        if endpoint.key:
            headers["authorization"] = f"Bearer {endpoint.key}"
        connect_s = endpoint.timeouts.connect_s
        self._http = httpx.AsyncClient(
            base_url=endpoint.url + "/",
            headers=headers,
            # Reading has its own clock below: httpx's starts anew with every byte.
            timeout=httpx.Timeout(None, connect=connect_s, write=_SEND_TIMEOUT_S, pool=connect_s),
            limits=httpx.Limits(max_connections=endpoint.max_connections),
            verify=_trust(endpoint.ca_file),
            # A redirect would take the prompt and the key to a host that nobody configured.
            follow_redirects=False,
        )

    async def stream(self, outbound: OutboundPass, ask: Ask, take: TakeChunk) -> None:
        """Send the request and hand over each event until `take` or the endpoint has enough.

        Raises EndpointFault, also those that `take` raises.
        """
        request = checked(outbound, own=self._own)
        path = "chat/completions" if request.WhichOneof("prompt") == "chat" else "completions"
        body = upstream_body(request, ask.upstream_model, ask.max_tokens)
        salt = request.tenant_salt.hex()
        headers = {SALT_HEADER: salt} if self._salt is Salt.HEADER else {}
        if self._salt is Salt.CACHE_SALT and salt:
            body["cache_salt"] = salt
        begun = False

        def take_first(chunk: object) -> bool:
            nonlocal begun
            begun = True
            return take(chunk)

        try:
            await self._stream((path, body, headers), ask.limit_s, take_first)
        except httpx.PoolTimeout as error:
            raise self._fault(FaultKind.BUSY) from error
        except httpx.ConnectTimeout as error:
            raise self._fault(FaultKind.SLOW_CONNECT) from error
        except (TimeoutError, httpx.TimeoutException) as error:
            kind = FaultKind.STALLED if begun else FaultKind.SLOW_START
            raise self._fault(kind) from error
        except httpx.ConnectError as error:
            raise self._fault(FaultKind.TLS if _is_tls(error) else FaultKind.DOWN) from error
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError) as error:
            raise self._fault(FaultKind.BROKE_OFF) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _stream(
        self,
        post: tuple[str, dict[str, object], dict[str, str]],
        limit_s: float,
        take: TakeChunk,
    ) -> None:
        path, body, headers = post
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + min(limit_s, self._timeouts.total_s)
        async with asyncio.timeout_at(min(ends_s, loop.time() + self._timeouts.first_byte_s)) as t:
            async with self._http.stream("POST", path, json=body, headers=headers) as response:
                if response.status_code != 200:
                    raise self._refusal(response, await _error_body(response))
                self._check_kind(response)
                parts = response.aiter_raw()
                async with aclosing(self._events(parts)) as events:
                    async for event in events:
                        if take(event):
                            return
                        t.reschedule(min(ends_s, loop.time() + self._timeouts.chunk_s))
                await _read_end(parts)

    def _check_kind(self, response: httpx.Response) -> None:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        encoding = response.headers.get("content-encoding", "identity").lower()
        if kind != "text/event-stream" or encoding != "identity":
            raise self._fault(FaultKind.CONTENT_TYPE)

    async def _events(self, parts: AsyncIterator[bytes]) -> AsyncGenerator[object]:
        """Parsed `data:` lines up to `[DONE]` or the end; memory is bounded by one line."""
        num_bytes = 0
        rest = bytearray()
        async for part in parts:
            num_bytes += len(part)
            rest += part
            if num_bytes > _MAX_ANSWER_BYTES:
                raise self._fault(FaultKind.OVERSIZED)
            # Only the new part is searched: a line may come byte by byte.
            if b"\n" not in part:
                if len(rest) > _MAX_LINE_BYTES:
                    raise self._fault(FaultKind.OVERSIZED)
                continue
            *lines, rest = rest.split(b"\n")
            for line in lines:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield self._parsed(data)

    def _parsed(self, data: bytearray) -> object:
        if len(data) > _MAX_LINE_BYTES:
            raise self._fault(FaultKind.OVERSIZED)
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self._fault(FaultKind.MALFORMED) from error

    def _refusal(self, response: httpx.Response, body: bytes) -> EndpointFault:
        """What an HTTP status means. The key is ours, so 401 and 403 are not the client's."""
        status = response.status_code
        kind = _BY_STATUS.get(status, FaultKind.SERVER_ERROR)
        if 300 <= status < 400:
            kind = FaultKind.REDIRECT
        retry_after_s = _retry_after_s(response.headers.get("retry-after"))
        if kind is FaultKind.RATE_LIMITED and retry_after_s is None:
            retry_after_s = _DEFAULT_RETRY_AFTER_S
        return EndpointFault(
            kind, self._name, said=error_text(body), status=status, retry_after_s=retry_after_s
        )

    def _fault(self, kind: FaultKind) -> EndpointFault:
        return EndpointFault(kind, self._name)


@cache
def _trust(ca_file: Path | None) -> ssl.SSLContext:
    """Whom to believe; one for all endpoints, since reading the system's takes long."""
    if ca_file is None:
        return httpx.create_ssl_context()
    return ssl.create_default_context(cafile=ca_file)


def _is_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


async def _error_body(response: httpx.Response) -> bytes:
    body = b""
    async for part in response.aiter_raw():
        body += part
        if len(body) > _MAX_ERROR_BODY_BYTES:
            break
    return body


async def _read_end(parts: AsyncIterator[bytes]) -> None:
    """Read what follows `[DONE]`, a moment at most: only then can the connection be reused."""
    try:
        async with asyncio.timeout(_END_TIMEOUT_S):
            await anext(parts, b"")
            await anext(parts, b"")
    except (TimeoutError, httpx.HTTPError):
        return


def _retry_after_s(value: str | None) -> float | None:
    """Seconds from the header's number or date; None: absent or neither."""
    if not value:
        return None
    try:
        wait_s = float(value)
    except ValueError:
        try:
            wait_s = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, min(_MAX_RETRY_AFTER_S, wait_s)) if math.isfinite(wait_s) else None
