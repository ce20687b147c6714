"""Ray Serve LLM's OpenAI-compatible ingress behind the fleet's key, which it has no setting for.

Importable where vLLM is installed only: `ray.serve.llm` needs it. Of ours it imports
`cloud.keys` alone: vLLM wants an older protobuf than our generated stubs.
"""

from __future__ import annotations

from typing import Any

from ray.serve.llm.ingress import OpenAiIngress
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from cloud.keys import REFUSAL, bears_key

_REFUSED = {
    "message": REFUSAL,
    "type": "authentication_error",
    "param": None,
    "code": "invalid_api_key",
}


class KeyCheck:
    """Lets through what bears the key; the rest gets 401 in OpenAI's shape."""

    def __init__(self, app: ASGIApp, key_sha256: str) -> None:
        self._app = app
        self._key_sha256 = key_sha256

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan" or bears_key(Headers(scope=scope), self._key_sha256):
            await self._app(scope, receive, send)
        else:
            await JSONResponse({"error": _REFUSED}, status_code=401)(scope, receive, send)


class KeyedIngress(OpenAiIngress):
    """`ingress_cls` of `cloud.vllm_config`."""

    def __init__(self, *arguments: Any, key_sha256: str, **named: Any) -> None:
        self._key_sha256 = key_sha256
        super().__init__(*arguments, **named)

    def _set_asgi_app(self, app: ASGIApp) -> None:
        # Serve's wrapper, a base of the class that it makes of this one, calls it with the app.
        super()._set_asgi_app(KeyCheck(app, self._key_sha256))  # type: ignore[misc]
