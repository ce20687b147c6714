"""The process behind `shoal up`: starts the fleet's parts in order and keeps them.

Order: Redis (state and cache), orchestrator, agents (each enrols with a fresh join token, the same
way as any device). Redis and agents that failed are restarted with backoff; without its
orchestrator the fleet is nothing, so its death ends the rest and is reported.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from shoal.cli import cache_server, launches, redis_server
from shoal.cli.children import Launch, RunningChild, StartError, start_child
from shoal.cli.enrolment import LocalAgents
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.fleet_file import Child, FleetRecord, FleetState, write_record
from shoal.cli.fleet_lock import FleetLock
from shoal.cli.launches import UpOptions
from shoal.cli.processes import ProcessId, end_processes, marked_processes
from shoal.cli.progress import ProgressWriter
from shoal.cli.restarting import FIRST_PAUSE_S, comes_back, next_pause_s
from shoal.home import Home, default_home
from shoal.logs import set_up_logs
from shoal.tasks import cancelled

LEFTOVER_GRACE_S = 5.0
# Identity unusable, revoked, unknown device: the answer to these is to enrol again.
IDENTITY_REFUSED = frozenset({17, 20, 23})
# Names of the progress line itself, which a child's stage cannot set.
RESERVED = frozenset({"stage", "source", "unix_ms"})

log = structlog.get_logger()


class Supervisor:
    """Owns the children of one fleet and its `up.json`."""

    def __init__(self, home: Home, fleet_id: str, options: UpOptions) -> None:
        self._home = home
        self._options = options
        self._children: dict[str, RunningChild] = {}
        self._stopping = asyncio.Event()
        self._progress = ProgressWriter(home)
        self._cache_port = 0
        self._record = FleetRecord(
            fleet_id=fleet_id,
            supervisor=ProcessId.of(os.getpid()),
            state=FleetState.STARTING,
            port=options.port,
            num_agents=options.num_agents,
            models=options.models,
            started_unix_ms=time.time_ns() // 1_000_000,
        )

    def request_stop(self) -> None:
        """Ask for an orderly end; safe to call from a signal handler of the loop."""
        self._stopping.set()

    async def run(self) -> ExitCode:
        """Bring the fleet up; keep it until asked to stop or the orchestrator dies."""
        self._update()
        error = ""
        try:
            await self._unless_stopped(self._start_and_keep())
        except (StartError, CliError) as failure:
            error = str(failure)
            log.error("fleet_failed", error=error)
        await self._stop_all()
        state = FleetState.FAILED if error else FleetState.STOPPING
        self._update(state=state, error=error, children=())
        if error:
            self._progress.say("failed", message=error)
        return ExitCode.START_FAILED if error else ExitCode.OK

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`; a requested stop cancels it. Its exception is raised."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            await cancelled([task])
        elif failure := task.exception():
            raise failure

    async def _start_and_keep(self) -> None:
        self._cache_port = cache_server.choose_cache_port(self._home)
        if launches.cache_speaks_tls(self._options):
            # Its certificate comes from the orchestrator, which needs its administrator's password.
            cache_server.prepare_acl(self._home)
            await self._start_redis()
            url = await self._start_orchestrator()
            await self._start_cache()
        else:
            await _together(self._start_redis(), self._start_cache())
            url = await self._start_orchestrator()
        agents = LocalAgents(self._home, self._options, url)
        names = self._options.agent_names()
        await _together(*(self._start_agent(agents, name) for name in names))
        await agents.wait_until_ready(self._progress.say)
        self._update(state=FleetState.RUNNING)
        self._progress.say("ready", gateway_url=url)
        await _together(
            self._report_orchestrator(),
            self._keep("redis", self._start_redis),
            self._keep("cache", self._start_cache),
            *(self._keep(name, partial(self._start_agent, agents, name)) for name in names),
        )

    async def _start_redis(self) -> None:
        launch = launches.redis_launch(self._home)
        address = redis_server.state_socket(self._home)
        address.unlink(missing_ok=True)
        child = await self._launch(launch)
        await child.until(lambda: redis_server.answers(address), launches.REDIS_LIMIT_S)
        self._progress.say("redis_ready", binary=launch.command[0])

    async def _start_cache(self) -> None:
        tls = launches.cache_speaks_tls(self._options)
        listen = self._options.host if tls else ""
        child = await self._launch(launches.cache_launch(self._home, self._cache_port, listen))
        ca_file = self._home.ca_dir / "ca.crt" if tls else None
        answers = partial(cache_server.cache_answers, self._cache_port, ca_file)
        await child.until(answers, launches.REDIS_LIMIT_S)

    async def _start_orchestrator(self) -> str:
        launch = launches.orchestrator_launch(self._home, self._options, self._cache_port)
        child = await self._launch(launch)
        ready = await self._until_stage(child, "ready", launches.ORCHESTRATOR_LIMIT_S)
        self._update(gateway_url=ready["gateway_url"])
        return str(ready["gateway_url"])

    async def _start_agent(self, agents: LocalAgents, name: str) -> None:
        """Start one agent; one that the fleet no longer knows enrols once more."""
        known = agents.has_identity(name)
        try:
            await self._connect_agent(agents, name)
        except StartError as failure:
            if not known or failure.exit_status not in IDENTITY_REFUSED:
                raise
            log.warning("agent_enrols_again", agent=name, cause=str(failure))
            agents.forget_identity(name)
            await self._connect_agent(agents, name)

    async def _connect_agent(self, agents: LocalAgents, name: str) -> None:
        child = await self._launch(await agents.launch(name))
        await self._until_stage(child, "connected", launches.CONNECT_LIMIT_S)

    async def _launch(self, launch: Launch) -> RunningChild:
        child = await start_child(self._home, self._record.fleet_id, launch)
        self._children[child.name] = child
        entry = Child(child.name, child.process_id, str(child.log))
        self._update(children=self._record.with_child(entry).children)
        log.info("child_started", child=child.name, pid=child.process_id.pid)
        return child

    async def _until_stage(self, child: RunningChild, stage: str, limit_s: float) -> dict[str, Any]:
        """Pass the child's stages on to the progress file until `stage` comes; returns it."""
        reached: list[dict[str, Any]] = []

        def look() -> bool:
            for each in child.new_stages():
                details = {key: value for key, value in each.items() if key not in RESERVED}
                # The fleet's own "ready" is said when the agents are there, too.
                self._progress.say(f"{child.launch.part}_{each['stage']}", child.name, **details)
                reached.append(each)
            return any(each["stage"] == stage for each in reached)

        await child.until(look, limit_s)
        return next(each for each in reached if each["stage"] == stage)

    async def _report_orchestrator(self) -> None:
        child = self._children["orchestrator"]
        await child.wait()
        raise StartError(await child.describe_end())

    async def _keep(self, name: str, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the child again when it fails; with growing pauses when it ends at once."""
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            status = await self._children[name].wait()
            child = self._children[name]
            if status == 0 and not comes_back(child.launch.part, status):
                log.info("child_left", child=name)
                return
            log.error("child_ended", child=name, end=await child.describe_end())
            if not comes_back(child.launch.part, status):
                return
            pause_s = next_pause_s(pause_s, time.monotonic() - began)
            await asyncio.sleep(pause_s)
            try:
                await start()
            except (StartError, CliError) as failure:
                log.error("child_start_failed", child=name, error=str(failure))

    async def _stop_all(self) -> None:
        """End agents, then the orchestrator, then Redis; each waits for the one before."""
        self._update(state=FleetState.STOPPING)
        for part in ("agent", "orchestrator", "redis"):
            group = [child for child in self._children.values() if child.launch.part == part]
            await asyncio.gather(*(child.stop() for child in group))
        # A parent that crashed could not end its own children.
        leftovers = marked_processes(self._home, self._record.fleet_id)
        if leftovers:
            log.warning("ending_leftovers", pids=[process.pid for process in leftovers])
            await asyncio.to_thread(end_processes, leftovers, LEFTOVER_GRACE_S)

    def _update(self, **changes: Any) -> None:
        self._record = replace(self._record, **changes)
        write_record(self._home, self._record)


async def _together(*work: Coroutine[Any, Any, None]) -> None:
    """Run all; the first failure cancels the others and is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures


async def _supervise(fleet_id: str, options: UpOptions) -> ExitCode:
    home = default_home()
    supervisor = Supervisor(home, fleet_id, options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.request_stop)
    return await supervisor.run()


def main() -> int:
    """`python -m shoal.cli.supervisor FLEET_ID OPTIONS_JSON`, started by `shoal up`."""
    set_up_logs("supervisor")
    lock = FleetLock(default_home())
    if not lock.acquire():
        log.error("fleet_already_supervised")
        return ExitCode.FAILED
    return asyncio.run(_supervise(sys.argv[1], UpOptions.from_json(sys.argv[2])))


if __name__ == "__main__":
    sys.exit(main())
