"""The HTTP client of a companion server. No proxy, no redirect: it goes where it was told."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import httpx

from agent.companion.settings import CompanionError, CompanionSettings
from shoal.errors import Reason, ShoalError, invalid
from shoal.openai.upstream import error_text, read_delta, read_usage, said, upstream_body
from shoal.v1 import inference_pb2 as pb

_CONNECT_S = 5.0
_ASK_S = 5.0
_MAX_LINE_BYTES = 1024 * 1024
_MAX_ERROR_BODY_BYTES = 64 * 1024
_RETRY_MS = 1000
# What llama.cpp and others call it; OpenAI's own name is the second.
_OVERFLOWS = ("exceed_context_size_error", "context_length_exceeded")
# OpenAI's defaults, which are this engine's too; servers have other ones.
_DEFAULTS = {"temperature": 1.0, "top_p": 1.0}


@dataclass(frozen=True, slots=True)
class Piece:
    """One event of an answer; each part may be missing."""

    delta: pb.Delta | None = None
    finish_reason: str = ""
    usage: pb.Usage | None = None


class Upstream:
    """Connections to one companion server."""

    def __init__(self, settings: CompanionSettings) -> None:
        self._settings = settings
        headers = {"accept": "text/event-stream"}
        if settings.key_file is not None:
            headers["authorization"] = f"Bearer {_read_key(settings)}"
        self._http = httpx.AsyncClient(
            base_url=settings.url + "/",
            headers=headers,
            timeout=httpx.Timeout(settings.stall_s, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        """Close all connections; the server drops what they asked for."""
        await self._http.aclose()

    async def check(self) -> str:
        """Why the server does not serve now; empty: it does."""
        url = self._settings.health_url or "models"
        try:
            response = await self._http.get(url, timeout=_ASK_S)
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return "" if response.status_code == 200 else f"HTTP {response.status_code}"

    async def learn(self) -> CompanionSettings:
        """The settings, completed by what the server says of its model (llama.cpp's `meta`)."""
        settings = self._settings
        if settings.num_parameters and settings.context_tokens:
            return settings
        meta = await self._ask_meta()
        return replace(
            settings,
            num_parameters=settings.num_parameters or _whole(meta.get("n_params")),
            context_tokens=settings.context_tokens
            or _whole(meta.get("n_ctx_slot"))
            or _whole(meta.get("n_ctx"))
            or _whole(meta.get("n_ctx_train")),
        )

    async def _ask_meta(self) -> dict[str, Any]:
        try:
            response = await self._http.get("models", timeout=_ASK_S)
            rows = response.json()["data"]
            named = [row for row in rows if row.get("id") == self._settings.upstream_model]
            meta = (named or rows)[0].get("meta")
        except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError):
            return {}  # a server that says nothing of its model: the owner's word counts
        return meta if isinstance(meta, dict) else {}

    async def stream(self, request: pb.GenerateRequest) -> AsyncGenerator[Piece]:
        """The answer, event by event; leaving early closes the connection and frees the server.

        Raises ShoalError.
        """
        chat = request.WhichOneof("prompt") == "chat"
        path = "chat/completions" if chat else "completions"
        try:
            async with self._http.stream("POST", path, json=self._body(request)) as response:
                if response.status_code != 200:
                    raise _refusal(response, await _error_body(response), chat=chat)
                async with aclosing(_events(response.aiter_raw())) as events:
                    async for event in events:
                        yield _piece(event)
        except httpx.TimeoutException as error:
            raise _broken(f"was silent for {self._settings.stall_s:g} s") from error
        except (httpx.HTTPError, OSError) as error:
            raise _broken(f"broke off ({type(error).__name__})") from error

    def _body(self, request: pb.GenerateRequest) -> dict[str, Any]:
        max_tokens = request.max_tokens if request.HasField("max_tokens") else None
        asked = upstream_body(request, self._settings.upstream_model, max_tokens)
        return {**_DEFAULTS, **self._settings.body, **asked}


async def _events(parts: AsyncIterator[bytes]) -> AsyncGenerator[object]:
    """Parsed `data:` lines up to `[DONE]` or the end."""
    rest = bytearray()
    async for part in parts:
        rest += part
        *lines, rest = rest.split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            raise _broken("sent a line of over a megabyte")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            try:
                yield json.loads(data)
            except (ValueError, RecursionError) as error:
                raise _broken("sent what is not JSON") from error


def _piece(chunk: object) -> Piece:
    if not isinstance(chunk, dict):
        raise _broken("sent what is not a chunk")
    if chunk.get("error"):
        raise _broken(f"reported: {said(chunk['error'])}")
    try:
        usage = read_usage(chunk["usage"]) if isinstance(chunk.get("usage"), dict) else None
        choices = chunk.get("choices")
        if not choices:
            return Piece(usage=usage)
        finish = str(choices[0].get("finish_reason") or "")
        return Piece(read_delta(choices[0]), finish, usage)
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
        raise _broken("sent what is not OpenAI's format") from error


def _refusal(response: httpx.Response, body: bytes, *, chat: bool) -> ShoalError:
    """What an HTTP status means for the request; where another device may do, it is tried."""
    status, text = response.status_code, error_text(body)
    if status in (429, 503):
        return ShoalError(
            Reason.OVERLOADED, f"the companion server is busy: {text}", retry_after_ms=_RETRY_MS
        )
    if status == 404 and not chat:
        return invalid("prompt", "prompt: this companion serves chat only; use messages")
    if status in (400, 413, 422):
        param = "messages" if chat else "prompt"
        if any(name.encode() in body for name in _OVERFLOWS):
            return ShoalError(Reason.CONTEXT_OVERFLOW, f"{param}: {text}", param=param)
        return ShoalError(Reason.INVALID_ARGUMENT, f"the companion server refused it: {text}")
    return _broken(f"answered HTTP {status}: {text}")


async def _error_body(response: httpx.Response) -> bytes:
    body = b""
    async for part in response.aiter_raw():
        body += part
        if len(body) > _MAX_ERROR_BODY_BYTES:
            break
    return body


def _broken(what: str) -> ShoalError:
    return ShoalError(Reason.ENGINE_CRASHED, f"the companion server {what}")


def _read_key(settings: CompanionSettings) -> str:
    try:
        return settings.key_file.read_text(encoding="utf-8").strip() if settings.key_file else ""
    except (OSError, ValueError) as error:
        raise CompanionError(f"key_file {settings.key_file}: {error}") from error


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
