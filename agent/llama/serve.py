"""The engine process: one model behind a Unix socket.

`python -m agent.llama.serve --socket PATH --model FILE`. It answers
EngineControl.Describe from the start (state LOADING, then READY), ends when its
parent does, and says why on the last line of stderr when it cannot go on: exit
code 65 for a model that cannot be served, 70 for a failure while running.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any

import grpc
import structlog

from agent.config import EngineConfig, PrefixCacheConfig
from agent.engine.output import Load, Update
from agent.engine.runner import RunnerError
from agent.llama.assembly import Assembly
from agent.llama.library import EXIT_FATAL, EXIT_MODEL_UNUSABLE, fatal
from agent.llama.loop import EngineLoop, LoopListener
from agent.llama.model import ModelUnusableError
from agent.llama.owner import Owner
from agent.llama.report import loading_report
from agent.llama.service import EngineService
from agent.llama.speculating import Speculator
from agent.llama.verifier_link import VerifierLinks
from agent.llama.verify_service import VerifyService
from shoal.kv_budget import ELEMENT_BYTES
from shoal.kv_sharing import share_policy_flag, write_limit_flag
from shoal.logs import set_up_logs
from shoal.model_names import catalogue_name
from shoal.v1 import engine_pb2_grpc, inference_pb2_grpc, verify_pb2_grpc
from shoal.wire import SERVER_OPTIONS

log = structlog.get_logger()

_PR_SET_PDEATHSIG = 1
_PARENT_CHECK_S = 1.0
# The step loop comes back from C into a thread that may be busy; it should not
# wait for it for Python's default of 5 ms.
_SWITCH_INTERVAL_S = 0.0005


def parse_arguments(arguments: list[str]) -> EngineConfig:
    """The configuration that the command line asks for; exits with 2 on a bad one."""
    parser = argparse.ArgumentParser(prog="agent.llama.serve", description="Serve one model.")
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket to listen on")
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--name", help="catalogue name; default: from the file's name")
    parser.add_argument("--slots", type=int, default=8, help="sequences that run at once")
    parser.add_argument("--context", type=int, help="tokens per sequence; default: what fits")
    parser.add_argument("--threads", type=int, help="default: one per usable CPU")
    parser.add_argument("--batch-threshold", type=int, default=4, help="see BatchingPolicy")
    parser.add_argument("--max-waiting", type=int, default=64, help="bound of the queue")
    parser.add_argument("--no-measure", action="store_true", help="skip the speed measurement")
    parser.add_argument(
        "--allow-batch-variance",
        action="store_true",
        help="batch even where a sequence's output then depends on the others",
    )
    _add_cache_arguments(parser)
    parser.add_argument("--identity", type=Path, help="folder of the certificate for verifiers")
    parser.add_argument("--parent", type=int, help="process to end with; default: the starter")
    parser.add_argument("--log-level", default="")
    options = parser.parse_args(arguments)
    if not 1 <= options.slots <= 256:
        parser.error("--slots: must be between 1 and 256")
    for name in ("context", "threads", "batch_threshold", "max_waiting"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')}: must be at least 1")
    return EngineConfig(
        model_path=options.model,
        model_name=options.name or catalogue_name(options.model),
        socket_path=options.socket,
        slots=options.slots,
        context_tokens=options.context,
        threads=options.threads,
        batch_threshold=options.batch_threshold,
        max_waiting=options.max_waiting,
        require_batch_invariance=not options.allow_batch_variance,
        measure=not options.no_measure,
        kv_type=options.kv_type,
        prefix_cache=_cache_config(options),
        identity_dir=options.identity,
        parent_pid=options.parent,
        log_level=options.log_level,
    )


def _add_cache_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--kv-type", choices=sorted(ELEMENT_BYTES), default="f16", help="elements of the KV cache")
    add("--no-prefix-cache", action="store_true", help="compute every prompt anew")
    add("--kv-host-mib", type=int, help="memory for KV blocks; default: a share of what is free")
    add("--kv-disk-mib", type=int, default=2048, help="disk for KV blocks; 0: none")
    add("--kv-dir", type=Path, help="folder for KV blocks; without it none are kept on disk")
    add("--kv-shared", type=Path, help="file with the way to the fleet's shared blocks")
    add("--kv-share", type=share_policy_flag, help="always, on_second_use or never")
    add("--kv-write-limit", type=write_limit_flag, help="MB/s to the shared blocks; 0: no limit")


def _cache_config(options: argparse.Namespace) -> PrefixCacheConfig | None:
    if options.no_prefix_cache:
        return None
    host_mib = options.kv_host_mib
    return PrefixCacheConfig(
        host_bytes=None if host_mib is None else max(0, host_mib) * 1024**2,
        disk_bytes=max(0, options.kv_disk_mib) * 1024**2,
        directory=options.kv_dir,
        shared_access=options.kv_shared,
        share_policy=options.kv_share,
        share_bytes_per_s=options.kv_write_limit,
    )


def die_with_parent(expected: int | None) -> int:
    """Have the kernel end this process when its parent's thread ends; the parent's id.

    Ends the process at once when it was to be `expected` and is gone already.
    """
    parent = expected or os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        fatal("the parent process is gone", EXIT_FATAL)
    return parent


async def serve(config: EngineConfig, parent: int) -> None:
    """Serve until SIGTERM, SIGINT or the parent's end; exits the process on a failure."""
    events = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        events.add_signal_handler(number, stop.set)
    service = EngineService(loading_report(config))
    failure: list[str] = []

    def on_failure(reason: str) -> None:
        failure.append(reason)
        events.call_soon_threadsafe(stop.set)

    assembly = Assembly(config)
    loop = EngineLoop(
        assembly.make_core,
        LoopListener(
            on_output=lambda updates, load: _hand_over(events, service, updates, load),
            on_failure=on_failure,
        ),
    )
    verifier = VerifyService(config.model_name)
    links = VerifierLinks(config.identity_dir)
    server = await _listen(config.socket_path, service, verifier)
    loop.start()
    await _load(config, loop, stop)
    if not stop.is_set():
        template = await assembly.start_template()
        report, preparer, owner = assembly.report(), assembly.preparer(template), Owner(loop)
        service.set_ready(report, loop, preparer)
        service.speculator = Speculator(
            owner, assembly.runner, links, lambda updates: service.deliver(updates, None)
        )
        rate = report.decode_tokens_per_s
        verifier.set_ready(owner, assembly.runner, preparer, 1e3 / rate if rate else 0.0)
        log.info("engine_ready", model=config.model_name, socket=str(config.socket_path))
    while not stop.is_set() and os.getppid() == parent:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PARENT_CHECK_S):
                await stop.wait()
    await server.stop(0.2)
    await links.close()
    await assembly.close_template()
    await asyncio.to_thread(config.socket_path.unlink, missing_ok=True)
    if failure:
        fatal(failure[0], EXIT_FATAL)
    if not loop.stop():
        fatal("the current step did not end in time", EXIT_FATAL)


def _hand_over(
    events: asyncio.AbstractEventLoop,
    service: EngineService,
    updates: list[Update],
    load: Load | None,
) -> None:
    with contextlib.suppress(RuntimeError):  # the event loop closed: nobody listens any more
        events.call_soon_threadsafe(service.deliver, updates, load)


async def _listen(path: Path, service: EngineService, verifier: VerifyService) -> grpc.aio.Server:
    await asyncio.to_thread(path.unlink, missing_ok=True)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    inference_pb2_grpc.add_InferenceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    engine_pb2_grpc.add_EngineControlServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    verify_pb2_grpc.add_VerifierServicer_to_server(verifier, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


async def _load(config: EngineConfig, loop: EngineLoop, stop: asyncio.Event) -> None:
    """Wait for the model; exits the process when it cannot be served."""
    ready = asyncio.wrap_future(loop.ready)
    stopped = asyncio.create_task(stop.wait())
    waited_for: set[asyncio.Future[Any]] = {ready, stopped}
    done, _ = await asyncio.wait(
        waited_for, timeout=config.load_limit_s, return_when=asyncio.FIRST_COMPLETED
    )
    stopped.cancel()
    if not done:
        fatal(
            f"{config.model_path.name} did not load within {config.load_limit_s:g} s",
            EXIT_MODEL_UNUSABLE,
        )
    if ready not in done:
        os._exit(0)  # asked to stop while loading, which cannot be interrupted
    try:
        ready.result()
    except (ModelUnusableError, RunnerError) as error:
        fatal(str(error), EXIT_MODEL_UNUSABLE)
    except Exception as error:
        log.exception("engine_load_failed")
        fatal(f"{type(error).__name__}: {error}", EXIT_FATAL)


def main() -> None:
    """Entry point of the engine process."""
    config = parse_arguments(sys.argv[1:])
    parent = die_with_parent(config.parent_pid)
    set_up_logs("engine", config.log_level)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    asyncio.run(serve(config, parent))


if __name__ == "__main__":
    main()
