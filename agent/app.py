"""The device agent: `python -m agent.app`. The composition root: it alone builds things.

Imports neither llama_cpp nor Ray: engines are child processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

from agent.calibration.idle import IdleTerms, calibrate_when_idle
from agent.calibration.in_use import calibrated, for_engines
from agent.calibration.store import CalibrationStore
from agent.companion.settings import CompanionError, CompanionSettings, read_companions
from agent.hardware.bandwidth import measure_bandwidth_gb_s
from agent.hardware.memory import read_memory
from agent.hardware.meters import find_meters
from agent.hardware.report import Capabilities, detect
from agent.rpc import convert
from agent.rpc.device import Device, DeviceParts
from agent.rpc.engine_process import EngineSpec, engine_command
from agent.rpc.engines import Companion, EngineSettings
from agent.rpc.enrol import JoinRequest, enrol
from agent.rpc.identity import Identity, IdentityStore, ca_der
from agent.rpc.membership import Membership, check_not_expired
from agent.rpc.model_files import find_model
from agent.rpc.stages import Stages
from agent.session.backoff import Backoff
from agent.session.config import AgentConfig, read_config
from agent.session.errors import AgentError, ExitCode
from agent.session.join_token import JoinToken
from agent.upgrade.joined import JoinedMark
from agent.upgrade.upgrades import Upgrades
from shoal.home import Home
from shoal.logs import set_up_logs
from shoal.model_names import catalogue_name
from shoal.selector import CALIBRATED
from shoal.tasks import cancelled

log = structlog.get_logger()

# By model name: what `--companion` said, and what that means.
Companions = dict[str, tuple[str, CompanionSettings]]
EngineCommand = Callable[[EngineSpec], Sequence[str]]


def main(arguments: Sequence[str], command: EngineCommand = engine_command) -> int:
    """Run the agent until it is told to leave; returns the exit code (`ExitCode`)."""
    stages = Stages()
    try:
        config = read_config(arguments)
        set_up_logs("agent", config.log_level)
        _lock(config.home)
        companions = _find_companions(config)
        models = _find_models(config)
        for name in companions.keys() & models.keys():
            raise AgentError(ExitCode.USAGE, f"--companion and --model both serve {name!r}")
        return asyncio.run(_run(config, models, companions, command, stages))
    except AgentError as error:
        stages.say("failed", exit_code=int(error.exit_code), message=error.message)
        sys.stderr.write(f"agent: {error.message}\n")
        return int(error.exit_code)
    except KeyboardInterrupt:  # while joining; later SIGINT is a request to leave
        return 128 + signal.SIGINT


async def _run(
    config: AgentConfig,
    models: dict[str, Path],
    companions: Companions,
    command: EngineCommand,
    stages: Stages,
) -> int:
    store = IdentityStore(config.home)
    identity = await _become_member(config, store, stages)
    structlog.contextvars.bind_contextvars(device_id=identity.device_id)
    sockets_dir = _make_sockets_dir(config)
    capabilities = await asyncio.to_thread(_capabilities, config, companions)
    choices, uncalibrated = calibrated(config, capabilities)
    models = models | {name: choice.file for name, choice in choices.items()}
    labels = {f"{CALIBRATED}{name}": str(choice) for name, choice in choices.items()}
    capabilities = dataclasses.replace(capabilities, labels={**capabilities.labels, **labels})
    meters, _ = find_meters(Path("/"), gpus=capabilities.detected_class == "gpu")
    device = Device(
        DeviceParts(
            membership=Membership(
                identity,
                store,
                config.join_url,
                outlives_certificate=config.local_api is not None,
            ),
            capabilities=convert.capability_report(capabilities),
            engines=dataclasses.replace(
                _engine_settings(config, sockets_dir, command),
                calibrated=for_engines(choices.values()),
            ),
            backoff=Backoff(random.Random()),  # noqa: S311 - jitter is no secret
            stages=stages,
            meters=meters,
            companions=tuple(
                Companion(name, argument, patient=not settings.command)
                for name, (argument, settings) in companions.items()
            ),
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(
            number, lambda: device.leave("shutting down", grace_s=config.grace_s)
        )
    try:
        upgrades = Upgrades(
            device, config.home, config.prefix, config.join_url or identity.gateway_url
        )
        device.extensions += [upgrades, JoinedMark(config.home)]
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(upgrades.stop)
            if config.local_api is not None:
                from agent.local_api.starting import local_api  # else its 5 MB are saved

                await stack.enter_async_context(local_api(device, config, stages))
            if config.calibrates and uncalibrated:
                calibrating = asyncio.create_task(
                    calibrate_when_idle(
                        uncalibrated,
                        CalibrationStore(config.home),
                        lambda: device.is_idle,
                        IdleTerms(),
                    )
                )
                stack.push_async_callback(_end, calibrating)
            end = await device.run(models)
    finally:
        _remove_sockets(sockets_dir)
    stages.say("stopped", exit_code=int(end.exit_code), message=end.message)
    if end.exit_code is not ExitCode.OK:
        sys.stderr.write(f"agent: {end.message}\n")
    elif upgrades.restarts:
        return int(ExitCode.RESTART)
    return int(end.exit_code)


async def _end(task: asyncio.Task[None]) -> None:
    await cancelled([task])
    if not task.cancelled():
        task.result()


async def _become_member(config: AgentConfig, store: IdentityStore, stages: Stages) -> Identity:
    identity = store.load()
    if identity is None:
        if not config.join_url or not config.token:
            raise AgentError(
                ExitCode.USAGE,
                f"{config.home} holds no identity: pass --join URL and --token TOKEN "
                "(made by `shoal token create`) to join a fleet",
            )
        request = JoinRequest(
            url=config.join_url,
            token=JoinToken.parse(config.token),
            name=config.name,
            patience_s=config.join_patience_s,
        )
        identity = await enrol(request, store)
    elif config.token:
        JoinToken.parse(config.token).check_member(ca_der(identity.ca_pem), config.home)
    if config.local_api is None:
        check_not_expired(identity, datetime.now(UTC))
    stages.say("enrolled", device_id=identity.device_id, name=identity.name)
    return identity


def _capabilities(config: AgentConfig, companions: Companions) -> Capabilities:
    """Detect and measure; about 0.3 s for the memory bandwidth."""
    served_by = {
        settings.device_class: f"companion {name}"
        for name, (_, settings) in companions.items()
        if settings.device_class
    }
    if len(served_by) > 1 and not config.device_class:
        raise AgentError(
            ExitCode.USAGE,
            f"companions are of the classes {', '.join(sorted(served_by))}, and a device has one: "
            "choose with --class, or run an agent for each",
        )
    detected = detect(
        declared_class=config.device_class or "".join(served_by),
        declared_tdp_w=config.tdp_w,
        served_by=served_by,
    )
    return dataclasses.replace(
        detected,
        memory_bandwidth_gb_s=measure_bandwidth_gb_s(
            detected.cores, read_memory(Path("/")).available_bytes
        ),
    )


def _make_sockets_dir(config: AgentConfig) -> Path:
    try:
        return Home(config.home).make_sockets_dir()
    except OSError as error:
        raise AgentError(ExitCode.USAGE, str(error)) from error


def _remove_sockets(sockets_dir: Path) -> None:
    """Leave nothing in the temporary directory; an engine may have removed its own."""
    with contextlib.suppress(OSError):
        for socket in sockets_dir.glob("engine-*.sock"):
            socket.unlink(missing_ok=True)
        sockets_dir.rmdir()


def _engine_settings(
    config: AgentConfig, sockets_dir: Path, command: EngineCommand
) -> EngineSettings:
    defaults = EngineSpec(
        name="",
        file=Path(),
        socket=Path(),
        slots=config.slots,
        context_tokens=config.context_tokens,
        threads=config.threads,
        kv_type=config.kv_type,
        kv_dir=config.kv_dir,
        kv_shared=config.kv_shared_file,
        kv_sharing=config.kv_sharing,
        identity_dir=config.home,
        extra_arguments=config.engine_arguments,
    )
    return EngineSettings(sockets_dir, config.models_dir, defaults, command)


def _find_companions(config: AgentConfig) -> Companions:
    companions: Companions = {}
    try:
        for argument in config.companions:
            for settings in read_companions(argument):
                if settings.name in companions:
                    raise CompanionError(f"two companions are named {settings.name!r}")
                companions[settings.name] = (argument, settings)
    except CompanionError as error:
        raise AgentError(ExitCode.USAGE, str(error)) from error
    return companions


def _find_models(config: AgentConfig) -> dict[str, Path]:
    models: dict[str, Path] = {}
    for argument in config.models:
        file = find_model(argument, config.models_dir)
        name = catalogue_name(file)
        if models.setdefault(name, file) != file:
            raise AgentError(
                ExitCode.USAGE,
                f"--model {argument} and {models[name]} are both {name!r}; one device serves "
                "one variant of a model",
            )
    return models


def _lock(home: Path) -> None:
    """Hold the state directory until this process ends: one identity, one agent."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(home / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AgentError(ExitCode.USAGE, f"--home {home}: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise AgentError(
            ExitCode.ALREADY_RUNNING, f"another agent runs with --home {home}; stop it first"
        ) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
