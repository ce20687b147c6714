"""The cloud backend: any OpenAI-compatible endpoint, streamed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import structlog

from orchestrator.dispatch.backend import Mailbox, failed_update
from orchestrator.dispatch.cloud_wire import ChunkReader, refusal, upstream_body
from orchestrator.dispatch.config import CloudEndpoint, CloudModel
from shoal.errors import Reason, ShoalError
from shoal.v1 import inference_pb2 as pb

_log = structlog.get_logger(__name__)
_MAX_ERROR_BODY_BYTES = 64 * 1024
# A line of a stream is one chunk; endpoints send far shorter ones.
_MAX_LINE_CHARS = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CloudRoute:
    """A cloud model and the endpoint that serves it."""

    endpoint: CloudEndpoint
    model: CloudModel


class CloudBackend:
    """Sends requests to the endpoints that serve their models; one HTTP client for each."""

    def __init__(
        self, endpoints: Sequence[CloudEndpoint], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._routes: dict[str, CloudRoute] = {}
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._monotonic = monotonic
        for endpoint in endpoints:
            self._clients[endpoint.name] = _client(endpoint)
            for model in endpoint.models:
                # The first endpoint in the file that has a model serves it.
                self._routes.setdefault(model.name, CloudRoute(endpoint, model))

    @property
    def routes(self) -> Mapping[str, CloudRoute]:
        """Cloud models by name."""
        return self._routes

    def start(self, request: pb.GenerateRequest) -> CloudGeneration:
        """Begin; `request.model` must be one of `routes`."""
        route = self._routes[request.model]
        return CloudGeneration(self._clients[route.endpoint.name], route, request, self._monotonic)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(client.aclose() for client in self._clients.values()))


def _client(endpoint: CloudEndpoint) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    return httpx.AsyncClient(
        base_url=endpoint.url + "/",
        headers=headers,
        timeout=httpx.Timeout(endpoint.read_timeout_s, connect=endpoint.connect_timeout_s),
        limits=httpx.Limits(max_connections=endpoint.max_connections),
        # A redirect would take the prompt and the key to a host that nobody configured.
        follow_redirects=False,
    )


class CloudGeneration:
    """A sequence in the cloud; cancelling closes its HTTP connection."""

    tier = "cloud"

    def __init__(
        self,
        client: httpx.AsyncClient,
        route: CloudRoute,
        request: pb.GenerateRequest,
        monotonic: Callable[[], float],
    ) -> None:
        self._client = client
        self._route = route
        self._request = request
        self._monotonic = monotonic
        self._mailbox = Mailbox()
        self._task = asyncio.create_task(self._run(), name=f"cloud {request.request_id}")

    async def take(self) -> Sequence[pb.SequenceUpdate]:
        """See `Generation.take`."""
        return await self._mailbox.take()

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._task.cancel()

    def _put(self, **parts: Any) -> None:
        self._mailbox.put(pb.SequenceUpdate(request_id=self._request.request_id, **parts))

    async def _run(self) -> None:
        endpoint = self._route.endpoint
        self._put(
            placed=pb.Placed(
                device_id=f"cloud:{endpoint.name}",
                device_name=endpoint.name,
                device_class="cloud",
                reason=f"{self._request.model} is served by the cloud endpoint {endpoint.name}.",
                attempt=1,
            )
        )
        try:
            await self._stream()
        except ShoalError as error:
            self._fail(error)
        except httpx.TimeoutException:
            self._fail(
                ShoalError(
                    Reason.UPSTREAM, f"The cloud endpoint {endpoint.name} did not answer in time."
                )
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            _log.warning("cloud_request_failed", endpoint=endpoint.name, cause=repr(error))
            self._fail(
                ShoalError(Reason.UPSTREAM, f"The cloud endpoint {endpoint.name} is unreachable.")
            )
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            # Whatever an endpoint sends that is not OpenAI's format ends here.
            _log.warning("cloud_answer_malformed", endpoint=endpoint.name, cause=repr(error))
            self._fail(
                ShoalError(
                    Reason.UPSTREAM, f"The cloud endpoint {endpoint.name} sent a malformed answer."
                )
            )

    def _fail(self, error: ShoalError) -> None:
        self._mailbox.put(failed_update(self._request.request_id, error))

    async def _stream(self) -> None:
        chat = self._request.WhichOneof("prompt") == "chat"
        body = upstream_body(self._request, self._route.model.upstream)
        path = "chat/completions" if chat else "completions"
        started_s = self._monotonic()
        async with self._client.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                raise refusal(self._route.endpoint.name, response, await _error_body(response))
            reader = ChunkReader()
            first_s = started_s
            async for line in response.aiter_lines():
                if len(line) > _MAX_LINE_CHARS:
                    raise ValueError("a line of the stream is too long")
                if not line.startswith("data:"):
                    continue
                data = line[5:].strip()
                if data == "[DONE]":
                    break
                delta = reader.read(json.loads(data))
                if delta is not None:
                    if reader.num_deltas == 1:
                        first_s = self._monotonic()
                    self._put(delta=delta)
            finished = reader.finished()
        self._put(finished=self._timed(finished, reader.num_deltas, (started_s, first_s)))

    def _timed(
        self, finished: pb.Finished, num_deltas: int, marks_s: tuple[float, float]
    ) -> pb.Finished:
        """Add timings as seen from here; an endpoint without usage is counted by its chunks."""
        started_s, first_s = marks_s
        now_s = self._monotonic()
        if not finished.usage.completion_tokens:
            finished.usage.completion_tokens = num_deltas
        tokens = finished.usage.completion_tokens
        finished.timings.ttft_ms = (first_s - started_s) * 1000
        finished.timings.total_ms = (now_s - started_s) * 1000
        finished.timings.tpot_ms = (now_s - first_s) * 1000 / (tokens - 1) if tokens > 1 else 0.0
        return finished


async def _error_body(response: httpx.Response) -> bytes:
    body = b""
    async for part in response.aiter_bytes():
        body += part
        if len(body) > _MAX_ERROR_BODY_BYTES:
            break
    return body
