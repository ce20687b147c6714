"""One candidate tried: the real engine in a child process, which measures itself and ends.

A build or a kernel that crashes takes the child along and is a line of the report.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from pathlib import Path

import grpc.aio

from agent.calibration.choosing import Candidate, Outcome
from agent.rpc.engine_client import EngineClient
from agent.rpc.engine_process import EngineProcess, EngineSpec, engine_command
from shoal.v1 import engine_pb2

_POLL_S = 0.05
# The engine's default, and twice it: whether more sequences at once bring anything.
_SLOTS = 8
# Enough for what is measured; a long context would be reserved for nothing.
_CONTEXT_TOKENS = 512


async def try_candidate(candidate: Candidate, limit_s: float) -> Outcome:
    """What became of it within `limit_s`; never raises for what the child does."""
    with tempfile.TemporaryDirectory(prefix="shoal-trial-") as folder:
        socket = Path(folder) / "e.sock"
        spec = EngineSpec(
            name="trial",
            file=candidate.file,
            socket=socket,
            slots=_SLOTS,
            context_tokens=_CONTEXT_TOKENS,
            threads=candidate.threads,
            kv_type=candidate.kv_type,
            extra_arguments=("--no-prefix-cache", "--log-level", "error"),
        )
        try:
            process = await EngineProcess.spawn(engine_command(spec), socket)
        except OSError as error:
            return Outcome(candidate, f"cannot start: {error}")
        client = EngineClient(socket)
        ended = asyncio.create_task(process.wait())
        ready = asyncio.create_task(_until_ready(client))
        try:
            await asyncio.wait({ended, ready}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                return _outcome(candidate, ready.result())
            if ended.done():
                return Outcome(candidate, ended.result())
            return Outcome(candidate, f"not ready within {limit_s:.1f} s", lacks="time")
        finally:
            ready.cancel()
            process.signal(signal.SIGKILL)
            await asyncio.gather(ended, ready, return_exceptions=True)
            await client.close()


async def _until_ready(client: EngineClient) -> engine_pb2.ModelReport:
    while True:
        try:
            report = await client.describe(5.0)
            if report.state == engine_pb2.MODEL_STATE_READY:
                return report
        except grpc.aio.AioRpcError:
            pass  # not listening yet, or gone: its end is seen by who waits for it
        await asyncio.sleep(_POLL_S)


def _outcome(candidate: Candidate, report: engine_pb2.ModelReport) -> Outcome:
    return Outcome(
        candidate,
        size_bytes=report.size_bytes,
        prefill=report.prefill_tokens_per_s,
        decode_batch=tuple(report.decode_batch_tokens_per_s),
        invariant="batched_decode:all" in report.kernels,
        any_cut="prefill:any_cut" in report.kernels,
    )
