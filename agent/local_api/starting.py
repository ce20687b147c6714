"""Brings the local API up beside a device, and down with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from agent.local_api.key import LocalKey
from agent.local_api.reporting import LocalReports
from agent.local_api.server import LocalServer
from agent.local_api.service import LocalText
from agent.rpc.device import Device
from agent.rpc.stages import Stages
from agent.session.config import AgentConfig
from agent.session.errors import AgentError, ExitCode
from agent.session.local_address import LocalAddress
from shoal.tasks import cancelled

log = structlog.get_logger()


@asynccontextmanager
async def local_api(device: Device, config: AgentConfig, stages: Stages) -> AsyncIterator[None]:
    """Serve within the block. A default port that is taken costs the API, not the agent.

    Raises AgentError for an address that somebody chose and that cannot be had.
    """
    if config.local_api is None:
        raise ValueError("the local API is off")
    reports = LocalReports(config.home, device.send, device.is_connected)
    device.extensions.append(reports)
    key = LocalKey.load_or_make(config.home)
    service = LocalText(device.local, key, reports.ended, config.local_key)
    server = LocalServer(service, config.home)
    _listen(server, config.local_api, stages)
    reporting = asyncio.create_task(reports.run(), name="local-reports")
    try:
        yield
    finally:
        await server.stop()
        await cancelled([reporting])
        reports.save()


def _listen(server: LocalServer, address: LocalAddress, stages: Stages) -> None:
    try:
        url = server.start(address.host, address.port)
    except OSError as error:
        where = f"{address.host}:{address.port}"
        message = f"the local API cannot listen on {where} ({error}); choose with --local-api"
        if address.chosen:
            raise AgentError(ExitCode.USAGE, message) from error
        log.warning("local_api_not_served", why=message)
        stages.say("local_api_failed", reason=message)
    else:
        log.info("local_api_serves", url=url)
        stages.say("local_api_ready", url=url)
