"""The gateway's HTTP interface, as the command line uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.fleet_file import FleetState, read_record
from shoal.home import Home, api_key_from_environment, gateway_url_from_environment

# Local answers take milliseconds; a remote gateway may need a handshake.
CONNECT_LIMIT_S = 5.0
ANSWER_LIMIT_S = 30.0
# Between two pieces of an answer: a long prompt on a slow device is quiet for a while.
STREAM_LIMIT_S = 600.0

_BY_STATUS = {
    401: ExitCode.NOT_ALLOWED,
    403: ExitCode.NOT_ALLOWED,
    404: ExitCode.NOT_FOUND,
    429: ExitCode.BUSY,
    503: ExitCode.BUSY,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Which gateway to talk to, and with which key."""

    url: str
    api_key: str


def find_endpoint(home: Home, *, admin: bool) -> Endpoint:
    """The gateway: `SHOAL_URL` if set, else the local fleet's.

    The key: `SHOAL_API_KEY`, else the home's admin or default key. Raises
    CliError NOT_RUNNING when neither names a gateway.
    """
    url = gateway_url_from_environment()
    if not url:
        record = read_record(home)
        if record is None or not record.gateway_url or record.state is FleetState.FAILED:
            why = f" The last one ended: {record.error}." if record and record.error else ""
            raise CliError(
                ExitCode.NOT_RUNNING,
                f"No fleet runs with the state directory {home.path}.{why}",
                "Start one with `shoal up`, or set SHOAL_URL to a gateway.",
            )
        url = record.gateway_url
    key_file = home.admin_key_file if admin else home.default_key_file
    key = api_key_from_environment() or _read_key(key_file)
    return Endpoint(url.rstrip("/"), key)


def _read_key(file: Path) -> str:
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        raise CliError(
            ExitCode.NOT_ALLOWED,
            f"There is no API key: {file} does not exist and SHOAL_API_KEY is not set.",
            "Set SHOAL_API_KEY to a key that the fleet's owner made with `shoal keys create`.",
        ) from None


class GatewayClient:
    """Calls the gateway; every failure becomes a CliError with a remedy."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._http = httpx.Client(
            base_url=endpoint.url,
            headers={"Authorization": f"Bearer {endpoint.api_key}"},
            timeout=httpx.Timeout(ANSWER_LIMIT_S, connect=CONNECT_LIMIT_S),
            trust_env=False,
        )

    def get(self, path: str, **query: str | int) -> Any:
        """The JSON answer to GET."""
        return self._call("GET", path, params=query)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON answer to POST."""
        return self._call("POST", path, json=body or {})

    def put(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer to PUT."""
        return self._call("PUT", path, json=body)

    def _call(self, method: str, path: str, **options: Any) -> Any:
        with self._translated():
            response = self._http.request(method, path, **options)
            _raise_for(response)
            return response.json()

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Each server-sent event's JSON; the first item is `{"headers": …}`."""
        limit = httpx.Timeout(STREAM_LIMIT_S, connect=CONNECT_LIMIT_S)
        with (
            self._translated(),
            self._http.stream("POST", path, json=body, timeout=limit) as answer,
        ):
            if answer.is_error:
                answer.read()
                _raise_for(answer)
            yield {"headers": dict(answer.headers)}
            for line in answer.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise CliError(ExitCode.FAILED, str(event["error"].get("message", event)))
                yield event

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException:
            raise CliError(
                ExitCode.UNREACHABLE,
                f"{self._endpoint.url} did not answer in time.",
                "See `shoal doctor` and the logs in the state directory.",
            ) from None
        except httpx.InvalidURL as error:
            message = f"No address at {self._endpoint.url} can be made of what was given: {error}"
            raise CliError(ExitCode.USAGE, message, "Shorten it.") from None
        except httpx.HTTPError as error:
            raise CliError(
                ExitCode.UNREACHABLE,
                f"Nothing answers at {self._endpoint.url}: {error}",
                "Start a fleet with `shoal up`, or correct SHOAL_URL.",
            ) from None


def _raise_for(response: httpx.Response) -> None:
    """Turn an error answer in OpenAI's shape into a CliError."""
    if not response.is_error:
        return
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = response.text[:300] or "no message"
    fallback = ExitCode.REFUSED if response.status_code < 500 else ExitCode.FAILED
    code = _BY_STATUS.get(response.status_code, fallback)
    remedy = ""
    if code is ExitCode.NOT_ALLOWED:
        remedy = "Check SHOAL_API_KEY; administration needs a key of the role admin."
    elif retry_after := response.headers.get("retry-after"):
        remedy = f"Try again in {retry_after} s."
    raise CliError(code, f"{message} (HTTP {response.status_code})", remedy)
