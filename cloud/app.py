"""A cloud node: `python -m cloud.app --home DIR --model FILE --name NAME --port P`.

Runs the agent's engine as a child process and serves it over mutual TLS: `Verifier` to
devices, `Inference` and `EngineControl` to gateways. Prints one JSON object a line on
stdout, the last one `ready`. Ends with its engine, with the engine's last words.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import grpc
import grpc.aio
import structlog

from cloud.config import NodeConfig, read_config
from cloud.relay import add_relay
from shoal.logs import set_up_logs
from shoal.v1 import engine_pb2, engine_pb2_grpc
from shoal.wire import CHANNEL_OPTIONS, ROW_BY_ROW, SERVER_OPTIONS

log = structlog.get_logger()

_POLL_S = 0.1
_ROUNDS_DIFFERENTLY = (
    "this model's passes over several rows round differently from one row, so that drafting saves "
    "no time; take a file of another type (Q8_0), or --engine-arg=--allow-batch-variance"
)


async def serve(config: NodeConfig) -> int:
    """Serve until SIGTERM, SIGINT or the engine's end; the exit status."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    socket = config.sockets_dir / f"cloud-{os.getpid()}.sock"
    child = await asyncio.create_subprocess_exec(*_command(config, socket))
    ended = asyncio.create_task(child.wait())
    stopped = asyncio.create_task(stop.wait())
    channel = grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    try:
        add_relay(server, channel)
        port = server.add_secure_port(f"{config.host}:{config.port}", _credentials(config.tls_dir))
        await server.start()
        ready = asyncio.create_task(_wait_ready(channel))
        await asyncio.wait((ready, ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            exact = ROW_BY_ROW not in ready.result()
            if not exact:
                log.warning("greedy_drafts_are_verified_row_by_row", reason=_ROUNDS_DIFFERENTLY)
            passes = "several rows" if exact else "one row where greedy"
            address = f"{config.host}:{port}"
            _say("ready", model=config.name, address=address, passes=passes)
        ready.cancel()
        await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            log.error("engine_ended", exit_code=ended.result())
    finally:
        stopped.cancel()
        await server.stop(0.2)
        await channel.close()
        if child.returncode is None:
            child.terminate()
            await child.wait()
    return 0 if stop.is_set() else 1


def _command(config: NodeConfig, socket: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "agent.llama.serve",
        *("--socket", str(socket), "--model", str(config.model), "--name", config.name),
        *("--parent", str(os.getpid())),
        *config.engine_arguments,
    ]


def _credentials(folder: Path) -> grpc.ServerCredentials:
    pair = ((folder / "tls.key").read_bytes(), (folder / "tls.crt").read_bytes())
    return grpc.ssl_server_credentials([pair], (folder / "ca.crt").read_bytes(), True)


async def _wait_ready(channel: grpc.aio.Channel) -> list[str]:
    """Poll until the model is loaded, which the engine bounds; what its kernels do."""
    stub = engine_pb2_grpc.EngineControlStub(channel)  # type: ignore[no-untyped-call]
    while True:
        try:
            report = await stub.Describe(engine_pb2.DescribeRequest(), timeout=5)
        except grpc.aio.AioRpcError as error:
            log.debug("engine_not_ready", code=error.code().name)
        else:
            if report.state == engine_pb2.MODEL_STATE_READY:
                return list(report.kernels)
        await asyncio.sleep(_POLL_S)


def _say(stage: str, **facts: str) -> None:
    print(json.dumps({"stage": stage, **facts}), flush=True)


def main() -> int:
    """Entry point of the node."""
    config = read_config(sys.argv[1:])
    set_up_logs("cloud")
    return asyncio.run(serve(config))


if __name__ == "__main__":
    sys.exit(main())
