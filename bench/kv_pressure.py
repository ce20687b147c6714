"""What a shared cache that is far too small does to answers and to memory.

    python -m bench.kv_pressure --model FILE [--prompts 200] [--redis-mb 64]

A fleet whose cache Redis holds 64 MB (allkeys-lru) and a device with a small budget for
KV blocks in memory answer 200 different long prompts, four at a time: many times more
KV than fits. Counted: answers by HTTP status, blocks that Redis evicted, and the
resident memory of agent and engine, whose growth may not exceed what they were given:
the memory tier's budget and the queues of blocks on their way to disk and to Redis. The
agent holds no blocks; it has an allowance for what a process grows by as it answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
from redis import Redis

from bench.load import Target
from bench.machine import machine
from bench.prompts import words
from bench.servers import SHOAL, fleet_environment, fleet_target, free_port
from shoal.blocks import SHARED_TIER_ADMIN
from shoal.cli.cache_server import last_cache_port
from shoal.home import Home

RESULTS = Path(__file__).parent / "results"
HOST_MIB = 256
# Of blocks on their way to Redis and to disk (docs/kv-cache.md).
QUEUES_MIB = 64 + 128
AGENT_MIB = 32
CLIENTS = 4
NUM_WORDS = 400
CONTEXT, SLOTS = 1024, 4
READY_LIMIT_S = 120


@dataclass
class Memory:
    """Resident memory of two processes, MiB: by name, one value a look."""

    processes: dict[str, psutil.Process]
    seen: dict[str, list[float]] = field(default_factory=dict)

    def look(self) -> None:
        """Read both once."""
        for name, process in self.processes.items():
            mib = process.memory_info().rss / 2**20
            self.seen.setdefault(name, []).append(mib)

    def report(self) -> dict[str, dict[str, float]]:
        """First, highest and last of each."""
        return {
            name: {"start": round(v[0], 1), "peak": round(max(v), 1), "end": round(v[-1], 1)}
            for name, v in self.seen.items()
        }


def main() -> None:
    """Ask, count, write bench/results/kv_pressure.json; fails at a 5xx or too much memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--redis-mb", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        home = Home(Path(folder))
        with _fleet(home, options.model) as (target, agent), _cache(home) as cache:
            cache.config_set("maxmemory", f"{options.redis_mb}mb")
            engine = next(
                each for each in agent.children() if "agent.llama.serve" in each.cmdline()
            )
            memory = Memory({"agent": agent, "engine": engine})
            began_s = time.monotonic()
            statuses = asyncio.run(_ask_all(target, options.prompts, memory))
            wall_s = time.monotonic() - began_s
            evicted = cache.info("stats")["evicted_keys"]
            held_mb = cache.info("memory")["used_memory"] / 1e6
    rss = memory.report()
    growth = {name: round(each["peak"] - each["start"], 1) for name, each in rss.items()}
    budgets = {"agent": AGENT_MIB, "engine": HOST_MIB + QUEUES_MIB}
    report = {
        "machine": machine(), "model": options.model.name, "prompts": options.prompts,
        "prompt_words": NUM_WORDS, "redis_mb": options.redis_mb, "seconds": round(wall_s, 1),
        "answers_by_status": dict(statuses), "redis_evicted_blocks": evicted,
        "redis_used_mb_at_end": round(held_mb, 1), "rss_mib": rss, "rss_growth_mib": growth,
        "budget_mib": budgets,
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "kv_pressure.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    if any(status >= 500 for status in statuses):
        raise SystemExit("some requests failed")
    if too_large := [name for name, mib in growth.items() if mib > budgets[name]]:
        raise SystemExit(f"more memory than its budgets: {', '.join(too_large)}")


async def _ask_all(target: Target, num_prompts: int, memory: Memory) -> Counter[int]:
    rng = random.Random(11)
    prompts = [words(rng, NUM_WORDS) for _ in range(num_prompts + CLIENTS)]
    statuses: Counter[int] = Counter()
    gate = asyncio.Semaphore(CLIENTS)
    headers = {"authorization": f"Bearer {target.key}"}
    async with aiohttp.ClientSession(target.url, headers=headers) as session:

        async def one(prompt: str) -> int:
            chat = [{"role": "user", "content": prompt}]
            body = {"model": target.model, "messages": chat, "max_tokens": 4, "temperature": 0}
            async with gate, session.post("/v1/chat/completions", json=body) as answer:
                await answer.read()
                return answer.status

        # Every slot was used once before memory is looked at: its buffers are then there.
        await asyncio.gather(*(one(prompt) for prompt in prompts[:CLIENTS]))
        memory.look()
        for done, each in enumerate(asyncio.as_completed([one(p) for p in prompts[CLIENTS:]]), 1):
            statuses[await each] += 1
            memory.look()
            if done % 20 == 0:
                print(f"{done} of {num_prompts}", file=sys.stderr, flush=True)
    return statuses


@contextlib.contextmanager
def _fleet(home: Home, model: Path) -> Iterator[tuple[Target, psutil.Process]]:
    """A fleet with one device whose memory tier is small: its endpoint and the agent."""
    env = fleet_environment(home.path)
    up = [SHOAL, "up", "--detach", "--agents", "0", "--port", str(free_port())]
    subprocess.run(up, env=env, check=True, stdout=sys.stderr)
    try:
        made = json.loads(subprocess.check_output([SHOAL, "token", "create", "--json"], env=env))
        command = [
            *(sys.executable, "-m", "agent.app", "--home", str(home.agent_dir("small"))),
            *("--join", made["gateway_url"], "--token", made["token"], "--name", "small"),
            *("--model", str(model.absolute()), "--slots", str(SLOTS), "--context", str(CONTEXT)),
            f"--engine-arg=--kv-host-mib={HOST_MIB}",
        ]
        agent = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
        try:
            _wait_ready(env)
            yield fleet_target(env), psutil.Process(agent.pid)
        finally:
            agent.terminate()
            agent.wait(30)
    finally:
        subprocess.run([SHOAL, "down"], env=env, check=True, stdout=sys.stderr)


def _wait_ready(env: dict[str, str]) -> None:
    deadline = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline:
        status = json.loads(subprocess.check_output([SHOAL, "status", "--json"], env=env))
        if any(device["state"] == "READY" and device["models"] for device in status["devices"]):
            return
        time.sleep(1)
    raise RuntimeError("the device did not get ready")


@contextlib.contextmanager
def _cache(home: Home) -> Iterator[Redis]:
    port = last_cache_port(home)
    if port is None:
        raise RuntimeError("this fleet has no shared cache")
    password = home.cache_admin_file.read_text().strip()
    client = Redis(port=port, username=SHARED_TIER_ADMIN, password=password, decode_responses=True)
    try:
        yield client
    finally:
        client.close()


if __name__ == "__main__":
    main()
