"""The companion process, in an engine's place: `python -m agent.companion.serve --help`.

It starts the companion server, or finds the one that runs, waits until it answers, measures
it, and serves it on a Unix socket by the engine's contract. It ends when its parent does,
when the server ends or stays sick, and says why on the last line of stderr; whoever
supervises engines then starts it again.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc.aio
import structlog

from agent.companion.relay import Relay
from agent.companion.selftest import SelfTest, Speed
from agent.companion.server import CompanionServer, until_port_is_free
from agent.companion.service import CompanionService
from agent.companion.settings import (
    CompanionError,
    CompanionSettings,
    find_companion,
    parameters_in,
)
from agent.companion.upstream import Upstream
from agent.lifeline import die_with_parent
from shoal.errors import ShoalError
from shoal.logs import set_up_logs
from shoal.tasks import cancelled
from shoal.v1 import engine_pb2_grpc, inference_pb2_grpc
from shoal.wire import SERVER_OPTIONS

log = structlog.get_logger()

EXIT_UNUSABLE = 65
EXIT_LOST = 70
_POLL_S = 0.25
# A server that runs elsewhere may take its time; asking costs it something.
_LAST_POLL_S = 2.0
_CHECK_EVERY_S = 2.0
# Checks in a row that fail, or answers that do: the server is sick, and a restart is tried.
_SICK_CHECKS = 3
_SICK_ANSWERS = 3


class CompanionLostError(Exception):
    """The companion cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """The process's command line."""

    socket: Path
    settings: CompanionSettings
    measure: bool
    log_level: str


def parse_arguments(arguments: Sequence[str]) -> Options:
    """Exits with 2 on a bad command line; CompanionError for a bad description."""
    parser = argparse.ArgumentParser(prog="agent.companion.serve", description="Serve a companion.")
    add = parser.add_argument
    add("--socket", type=Path, required=True, help="Unix socket to listen on")
    add("--companion", required=True, metavar="FILE|URL#MODEL", help="see docs/companion.md")
    add("--name", required=True, help="which of the file's companions")
    add("--no-measure", action="store_true", help="skip the speed measurement")
    add("--log-level", default="")
    given = parser.parse_args(arguments)
    return Options(
        socket=given.socket,
        settings=find_companion(given.companion, given.name),
        measure=not given.no_measure,
        log_level=given.log_level,
    )


async def serve(options: Options, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; CompanionLostError or CompanionError when it cannot go on."""
    service = CompanionService(options.settings)
    async with _listening(options.socket, service), _server(options.settings) as server:
        stopped = asyncio.create_task(stop.wait())
        ended = asyncio.create_task(server.wait()) if server is not None else None
        serving = asyncio.create_task(_serve(options, service, server))
        tasks = {stopped, serving, *([ended] if ended else ())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set() and ended is not None and ended.done():
                raise CompanionLostError(f"the companion server ended: {ended.result()}")
            if serving.done():
                serving.result()
        finally:
            await cancelled(tasks)


async def _serve(
    options: Options, service: CompanionService, server: CompanionServer | None
) -> None:
    """From the server's start to its sickness; never returns otherwise."""
    upstream = Upstream(options.settings)
    try:
        await _until_healthy(upstream, patient=server is None)
        if server is not None:
            server.note_serving()
        settings = _complete(await upstream.learn())
        speed = await _measure(upstream, settings, full=options.measure)
        relay = Relay(settings, upstream)
        service.set_ready(settings, speed, relay)
        log.info("companion_ready", model=settings.name, server=settings.url)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.tell_load())
            tasks.create_task(_watch(upstream, relay))
    except* CompanionLostError as lost:
        raise lost.exceptions[0] from None
    finally:
        await upstream.close()


async def _until_healthy(upstream: Upstream, *, patient: bool) -> None:
    """Poll; how long a server may take to start is the supervision's decision."""
    pause_s, last_why = _POLL_S, ""
    while why := await upstream.check():
        if why != last_why:
            log.info("companion_not_ready", why=why)
            last_why = why
        await asyncio.sleep(pause_s)
        pause_s = min(_LAST_POLL_S, pause_s * 1.2) if patient else _POLL_S


def _complete(settings: CompanionSettings) -> CompanionSettings:
    """The settings with the model's size, without which no request can be routed."""
    parameters = settings.num_parameters or parameters_in(settings.upstream_model)
    if not parameters:
        raise CompanionError(
            f"companion {settings.name}: neither the server nor the name "
            f'{settings.upstream_model!r} tells the size; state parameters = "1.5B"'
        )
    return replace(settings, num_parameters=parameters)


async def _measure(upstream: Upstream, settings: CompanionSettings, *, full: bool) -> Speed:
    test = SelfTest(upstream, settings.slots)
    try:
        if full:
            return await test.run()
        await test.prove()
    except ShoalError as error:
        raise CompanionLostError(f"the self-test failed: {error.message}") from error
    return Speed()


async def _watch(upstream: Upstream, relay: Relay) -> None:
    """Raise CompanionLostError when the server stays sick."""
    num_failed = 0
    while True:
        await asyncio.sleep(_CHECK_EVERY_S)
        why = await upstream.check()
        num_failed = num_failed + 1 if why else 0
        if num_failed >= _SICK_CHECKS:
            raise CompanionLostError(f"the companion server does not serve: {why}")
        if relay.num_failed_in_a_row >= _SICK_ANSWERS:
            raise CompanionLostError(
                f"the companion server failed {relay.num_failed_in_a_row} requests in a row"
            )


@asynccontextmanager
async def _server(settings: CompanionSettings) -> AsyncIterator[CompanionServer | None]:
    if not settings.command:
        yield None
        return
    if not await until_port_is_free(settings.url):
        raise CompanionLostError(f"another process has the port of {settings.url}")
    try:
        server = await CompanionServer.start(settings)
    except OSError as error:
        raise CompanionLostError(f"cannot start the companion server: {error}") from error
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def _listening(path: Path, service: CompanionService) -> AsyncIterator[None]:
    await asyncio.to_thread(path.unlink, missing_ok=True)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    inference_pb2_grpc.add_InferenceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    engine_pb2_grpc.add_EngineControlServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(0.2)
        await asyncio.to_thread(path.unlink, missing_ok=True)


async def _main(options: Options) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(options, stop)


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    try:
        die_with_parent(None)
        options = parse_arguments(arguments)
        set_up_logs("companion", options.log_level)
        asyncio.run(_main(options))
    except CompanionError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_UNUSABLE
    except (CompanionLostError, ProcessLookupError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_LOST
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
