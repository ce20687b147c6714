"""What a gateway tells everyone who wants to join: CA, ports, protocol.

Nothing in it is secret, and nothing in it is trusted before the CA was checked.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from agent.rpc.identity import ca_der
from agent.rpc.tls import is_loopback
from agent.session.errors import AgentError, ExitCode

_RETRY_S = 0.5
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class FleetPage:
    """The answer of `GET /shoal/v1/join`; addresses are host:port."""

    ca_pem: bytes
    enrol_address: str
    hub_addresses: tuple[str, ...]
    protocol: tuple[int, int]


async def ask_gateway(url: str, give_up_at: float) -> FleetPage:
    """Fetch the page; an unreachable gateway is asked again until `give_up_at` (loop time).

    Raises AgentError: UNREACHABLE when nothing or something else answers, USAGE
    when the URL is none.
    """
    import httpx  # only a device that joins or lost its hub needs an HTTP client

    page_url = f"{url.rstrip('/')}/shoal/v1/join"
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=not is_loopback(url)) as client:
        while True:
            try:
                response = await client.get(page_url)
                if response.status_code < 500:
                    break
                why = f"HTTP {response.status_code}"
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise AgentError(ExitCode.USAGE, f"--join {url}: {error}") from error
            except httpx.HTTPError as error:
                why = str(error) or type(error).__name__
            if loop.time() >= give_up_at:
                raise AgentError(
                    ExitCode.UNREACHABLE,
                    f"no gateway answers at {url} ({why}); check --join and the network",
                )
            await asyncio.sleep(_RETRY_S)
    if response.status_code != httpx.codes.OK:
        raise AgentError(
            ExitCode.UNREACHABLE,
            f"{page_url} answered HTTP {response.status_code}: this is not a shoal gateway",
        )
    try:
        return _read(response.json())
    except (ValueError, KeyError, TypeError) as error:
        raise AgentError(
            ExitCode.UNREACHABLE, f"{url} does not answer as a shoal gateway does; check --join"
        ) from error


def _read(body: dict[str, object]) -> FleetPage:
    protocol, hubs = body["protocol"], body["hub_addresses"]
    if not isinstance(protocol, dict) or not isinstance(hubs, list):
        raise TypeError("protocol or hub_addresses")
    page = FleetPage(
        ca_pem=str(body["ca_pem"]).encode(),
        enrol_address=str(body["enrol_address"]),
        hub_addresses=tuple(str(address) for address in hubs),
        protocol=(int(protocol["min"]), int(protocol["max"])),
    )
    ca_der(page.ca_pem)
    return page
