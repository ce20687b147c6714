"""A drafting device and a verifying node, both real engines, against the target alone.

    python -m bench.speculative --draft DRAFT.Q4_0.gguf --target TARGET.Q8_0.gguf --prompts 200

Counts how many greedy texts equal the target's own, and the target's passes a token. With
`--pace` a relay between the two adds 20 ms of round trip and slows the target until one
of its tokens takes eight of the draft's. A pass over several rows then costs as many times
more as it measures here (`measured`), or no more, as where weights are what takes the time
(`flat`: a supposition, not a measurement). The target alone is taken at the slowed pace.
With `always` the node claims that only drafts are worth while, so that every token but the
first is drafted: that tries equality and counts passes, and its times mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from agent.engine.request import SamplingParams
from agent.llama.context import ContextShape, LlamaRunner
from agent.llama.library import open_library
from agent.llama.measure import probe_tokens
from agent.llama.model import Model
from agent.speculative.window import LONGEST_DRAFT
from bench.machine import machine
from bench.prompts import short_prompts
from shoal.v1 import inference_pb2 as pb
from shoal.v1 import verify_pb2, verify_pb2_grpc
from shoal.wire import CHANNEL_OPTIONS, CLOUD_TLS_NAME
from tests.harness.cloud_node import (
    Certificates,
    drafting_engine,
    make_certificates,
    running_node,
)
from tests.harness.engine_process import Answer, EngineProcess, engine_client, running_engine

ROUND_TRIP_S = 0.02
SLOWNESS = 8.0
# What a token by itself is said to take where drafting must always pay.
UNBEARABLE_MS = 1e5
FLAGS = ("--slots", "1", "--context", "1024", "--no-prefix-cache")


@dataclass
class Pace:
    """The slowed target: ms of a token by itself, and passes over n rows in such tokens."""

    token_ms: float
    ratios: dict[int, float]
    # Whether this is only said, and nothing slowed.
    only_said: bool = False
    # (drafted, accepted) of each round.
    rounds: list[tuple[int, int]] = field(default_factory=list)

    def pass_ms(self, num_rows: int) -> float:
        return self.token_ms * self.ratios[num_rows]


class Relay(verify_pb2_grpc.VerifierServicer):
    """Verifier between a device and a node that is farther away and slower than it is."""

    def __init__(self, upstream: grpc.aio.Channel, pace: Pace) -> None:
        self._stub = verify_pb2_grpc.VerifierStub(upstream)
        self._pace = pace

    async def Verify(
        self, request_iterator: AsyncIterator[verify_pb2.VerifyRequest], context: Any
    ) -> AsyncIterator[verify_pb2.VerifyReply]:
        pace, due_s = self._pace, 0.0

        async def onward() -> AsyncIterator[verify_pb2.VerifyRequest]:
            nonlocal due_s
            async for request in request_iterator:
                due_s = time.perf_counter() + ROUND_TRIP_S
                yield request

        async for reply in self._stub.Verify(onward()):
            if reply.HasField("verdict"):
                verdict = reply.verdict
                verdict.pass_ms = pace.pass_ms(verdict.num_rows)
                # Tokens that the target makes by itself stream: one round trip for all.
                due_s += verdict.pass_ms / 1e3
                if verdict.num_rows > 1:
                    pace.rounds.append((verdict.num_rows - 1, verdict.num_accepted))
                if not pace.only_said:
                    await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            elif reply.HasField("opened"):
                reply.opened.token_ms = pace.token_ms
            yield reply


def pass_ratios(target: Path) -> dict[int, float]:
    """What passes over 1 to 17 rows take here, in passes over one row; medians."""
    runner = LlamaRunner(Model(target, open_library()), ContextShape(1, 512, os.cpu_count() or 1))
    tokens = probe_tokens(runner, 100)
    runner.start(0, SamplingParams(temperature=0.0), ())
    runner.prefill(0, tokens, 0, want_token=False)
    times: dict[int, list[float]] = {rows: [] for rows in range(1, LONGEST_DRAFT + 2)}
    for _ in range(20):
        for rows, taken in times.items():
            runner.truncate(0, len(tokens))
            began_s = time.perf_counter()
            runner.compute_rows(0, tokens[:rows], len(tokens))
            taken.append(time.perf_counter() - began_s)
    runner.close()
    medians = {rows: statistics.median(taken) for rows, taken in times.items()}
    return {rows: round(median / medians[1], 3) for rows, median in medians.items()}


def by_position(rounds: list[tuple[int, int]]) -> list[dict[str, float]]:
    """How many drafts were tried at each place of a round, and the share that stood."""
    rows = []
    for place in range(LONGEST_DRAFT):
        tried = [stood > place for drafted, stood in rounds if drafted > place <= stood]
        if tried:
            rows.append({"tried": len(tried), "stood": round(sum(tried) / len(tried), 4)})
    return rows


@contextlib.asynccontextmanager
async def relayed(certificates: Certificates, node: str, pace: Pace) -> AsyncIterator[str]:
    """The relay's address; it shows the node's certificate and dials with the device's."""
    device, cloud = certificates.device, certificates.home / "cloud"
    ca = (device / "ca.crt").read_bytes()
    dial = grpc.ssl_channel_credentials(
        ca, (device / "device.key").read_bytes(), (device / "device.crt").read_bytes()
    )
    options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", CLOUD_TLS_NAME))
    async with grpc.aio.secure_channel(node, dial, options=options) as upstream:
        server = grpc.aio.server()
        verify_pb2_grpc.add_VerifierServicer_to_server(Relay(upstream, pace), server)
        pair = ((cloud / "tls.key").read_bytes(), (cloud / "tls.crt").read_bytes())
        credentials = grpc.ssl_server_credentials([pair], ca, True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        yield f"127.0.0.1:{port}"
        await server.stop(None)


def requests(count: int, num_tokens: int, verifier: str = "") -> Iterator[pb.GenerateRequest]:
    for messages in short_prompts(count, seed=6):
        chat = pb.ChatPrompt(messages=[pb.ChatMessage(**message) for message in messages])
        request = pb.GenerateRequest(
            chat=chat, max_tokens=num_tokens, sampling=pb.Sampling(temperature=0.0)
        )
        if verifier:
            request.hints.privacy = pb.PRIVACY_ANY
            request.speculation.verifier, request.speculation.target = verifier, "target"
        yield request


async def answers(engine: EngineProcess, asked: Iterator[pb.GenerateRequest]) -> list[Answer]:
    async with engine_client(engine) as client:
        return [await client.run(request) for request in asked]


async def drafted(
    options: argparse.Namespace, certificates: Certificates, ratios: dict[int, float]
) -> tuple[list[Answer], dict[str, Any]]:
    with (
        running_node(certificates.home, options.target, *FLAGS) as node,
        drafting_engine(certificates, options.draft, *FLAGS) as device,
    ):
        draft_ms = 1e3 / device.report.decode_tokens_per_s
        pace = Pace(SLOWNESS * draft_ms, ratios)
        if options.pace == "always":
            pace = Pace(UNBEARABLE_MS, {1: 1.0} | dict.fromkeys(ratios, 0.0), only_said=True)
        began_s = time.perf_counter()
        if options.pace:
            async with relayed(certificates, node, pace) as address:
                asked = requests(options.prompts, options.tokens, address)
                given = await answers(device, asked)
        else:
            given = await answers(device, requests(options.prompts, options.tokens, node))
        took_s = time.perf_counter() - began_s
    facts: dict[str, Any] = {"draft_token_ms": draft_ms, "seconds": took_s}
    if options.pace:
        facts |= {
            "acceptance_by_position": by_position(pace.rounds),
            "mean_window": statistics.fmean(n for n, _ in pace.rounds) if pace.rounds else 0.0,
        }
    if options.pace in ("measured", "flat"):
        tpot_ms = statistics.fmean(a.finished.timings.tpot_ms for a in given if a.finished)
        facts |= {
            "pass_ratios": ratios,
            "tpot_ms": tpot_ms,
            "target_alone_tpot_ms": pace.token_ms,
            "speed_ratio": pace.token_ms / tpot_ms,
        }
    return given, facts


async def run(options: argparse.Namespace) -> dict[str, Any]:
    ratios = pass_ratios(options.target)
    if options.pace == "flat":
        ratios = dict.fromkeys(ratios, 1.0)
    with running_engine(options.target, *FLAGS) as target:
        alone = await answers(target, requests(options.prompts, options.tokens))
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        given, facts = await drafted(options, make_certificates(Path(folder)), ratios)
    told = [answer.finished.speculated for answer in given if answer.finished]
    num_tokens = sum(len(answer.tokens) for answer in given)
    rounds, stood = sum(e.rounds for e in told), sum(e.accepted_tokens for e in told)
    return {
        "pace": options.pace or "none",
        "prompts": len(given),
        "equal_texts": sum(a.tokens == b.tokens for a, b in zip(alone, given, strict=True)),
        "tokens": num_tokens,
        # The first token of each is the prompt's pass, with drafting or without.
        "target_passes_per_token": sum(e.target_passes for e in told) / (num_tokens - len(given)),
        "passes_per_token_while_drafting": rounds / max(1, rounds + stood),
        "acceptance": stood / max(1, sum(e.drafted_tokens for e in told)),
        "rounds": rounds,
        "round_trip_ms": told[-1].round_trip_ms,
        "last_comparison": told[-1].because,
        "fallbacks": sum(bool(each.fallback) for each in told),
        **facts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--pace", choices=("measured", "flat", "always"))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    result = {"machine": machine(), **asyncio.run(run(options))}
    text = json.dumps(result, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
