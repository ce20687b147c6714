"""Notices that the network is back, sooner than a pause or TCP's own retries would.

A path that swallows packets makes each dial last as long as it may, and a dial that began
without a network goes on asking at doubled intervals when there is one. So while there is no
connection, the hubs' ports are tried with short TCP connections that carry no byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from agent.session.connection import Connection, Phase


async def watch_path(
    connection: Connection, addresses: Callable[[], Sequence[str]], on_return: Callable[[], None]
) -> None:
    """Call `on_return` whenever a hub's port (host:port) answers that did not before.

    Tries each half heartbeat interval, which the hub sets with its fleet's size in mind.
    Never returns. Behind a proxy no port answers, and only the usual pauses hold.
    """
    lost = False
    while True:
        period_s = connection.heartbeat_interval_s / 2
        if connection.phase is Phase.CONNECTED:
            lost = False
            await asyncio.sleep(period_s)
            continue
        trial = asyncio.create_task(_any_answers(addresses(), period_s))
        await asyncio.sleep(period_s)
        answers = await trial
        if answers and lost:
            on_return()
        lost = not answers


async def _any_answers(addresses: Sequence[str], limit_s: float) -> bool:
    return any(await asyncio.gather(*(_answers(address, limit_s) for address in addresses)))


async def _answers(address: str, limit_s: float) -> bool:
    host, _, port = address.rpartition(":")
    with suppress(OSError, ValueError):  # TimeoutError is an OSError
        async with asyncio.timeout(limit_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
        return True
    return False
