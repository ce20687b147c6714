"""A drafting device and a verifying node, both real engines, against the target alone.

    python -m bench.speculative --draft DRAFT.Q4_0.gguf --target TARGET.Q8_0.gguf --prompts 200

Counts how many greedy texts equal the target's own, and the target's passes a token. With
`--paced` a relay between the two adds 20 ms of round trip and slows the target until one
of its tokens takes eight of the draft's; a pass over several rows costs as many times
more as it measures here. The target alone is paced by the same factor.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

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
FLAGS = ("--slots", "1", "--context", "1024", "--no-prefix-cache")


@dataclass
class Pace:
    """`factor`: by how much each pass of the target is stretched."""

    factor: float


class Relay(verify_pb2_grpc.VerifierServicer):
    """Verifier between a device and a node that is farther away and slower than it is."""

    def __init__(self, upstream: grpc.aio.Channel, pace: Pace) -> None:
        self._stub = verify_pb2_grpc.VerifierStub(upstream)
        self._pace = pace

    async def Verify(
        self, request_iterator: AsyncIterator[verify_pb2.VerifyRequest], context: Any
    ) -> AsyncIterator[verify_pb2.VerifyReply]:
        async for reply in self._stub.Verify(request_iterator):
            if reply.HasField("verdict"):
                took_ms = reply.verdict.pass_ms
                await asyncio.sleep(ROUND_TRIP_S + (self._pace.factor - 1) * took_ms / 1e3)
                reply.verdict.pass_ms = self._pace.factor * took_ms
            elif reply.HasField("opened"):
                reply.opened.token_ms *= self._pace.factor
            yield reply


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
    options: argparse.Namespace, certificates: Certificates, token_ms: float
) -> tuple[list[Answer], dict[str, Any]]:
    with (
        running_node(certificates.home, options.target, *FLAGS) as node,
        drafting_engine(certificates, options.draft, *FLAGS) as device,
    ):
        draft_ms = 1e3 / device.report.decode_tokens_per_s
        factor = max(1.0, SLOWNESS * draft_ms / token_ms)
        began_s = time.perf_counter()
        if options.paced:
            async with relayed(certificates, node, Pace(factor)) as address:
                asked = requests(options.prompts, options.tokens, address)
                given = await answers(device, asked)
        else:
            given = await answers(device, requests(options.prompts, options.tokens, node))
        took_s = time.perf_counter() - began_s
    facts = {"draft_token_ms": draft_ms, "factor": factor, "seconds": took_s}
    return given, facts


async def run(options: argparse.Namespace) -> dict[str, Any]:
    with running_engine(options.target, *FLAGS) as target:
        token_ms = 1e3 / target.report.decode_tokens_per_s
        alone = await answers(target, requests(options.prompts, options.tokens))
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        given, facts = await drafted(options, make_certificates(Path(folder)), token_ms)
    told = [answer.finished.speculated for answer in given if answer.finished]
    num_tokens = sum(len(answer.tokens) for answer in given)
    # The first token of each is the prompt's pass, with drafting or without.
    later = num_tokens - len(given)
    result = {
        "prompts": len(given),
        "equal_texts": sum(a.tokens == b.tokens for a, b in zip(alone, given, strict=True)),
        "tokens": num_tokens,
        "target_passes_per_token": sum(each.target_passes for each in told) / later,
        "acceptance": sum(e.accepted_tokens for e in told)
        / max(1, sum(e.drafted_tokens for e in told)),
        "rounds": sum(each.rounds for each in told),
        "fallbacks": sum(bool(each.fallback) for each in told),
        "target_token_ms": token_ms,
        **facts,
    }
    if options.paced:
        tpot_ms = [a.finished.timings.tpot_ms for a in given if a.finished]
        mean_ms = sum(tpot_ms) / len(tpot_ms)
        alone_ms = (
            facts["factor"]
            * sum(a.finished.timings.tpot_ms for a in alone if a.finished)
            / len(alone)
        )
        result |= {"tpot_ms": mean_ms, "target_alone_tpot_ms": alone_ms}
        result["speed_ratio"] = alone_ms / mean_ms
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--paced", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    result = {"machine": machine(), **asyncio.run(run(options))}
    text = json.dumps(result, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
