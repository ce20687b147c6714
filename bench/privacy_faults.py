"""Requests with planted secrets, under faults: does anything of a local one get out?

Every request carries a mark of its own in all its free text. A mark is *local* when the
request asks for `local_only`, or its tenant's policy says so, or its tenant has none.
Cloud endpoint, device, Redis, clients and one tenant's policy misbehave at random. In the
end the cloud's captured bytes, every command that reached Redis, every value in it, all
logs (level debug), /metrics and all error answers are searched for local marks.

    python -m bench.privacy_faults --requests 10000
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import random
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import structlog
from redis.asyncio import Redis

from orchestrator.fleet.registry_redis import connect
from orchestrator.identity.tenants import TenantPolicy
from orchestrator.identity.tenants_redis import TenantStore
from orchestrator.request import Privacy
from shoal.logs import set_up_logs
from tests.harness.cloud_upstream import (
    GOOD,
    Exchange,
    hang_up,
    refuse,
    silent,
    stream,
    text_chunk,
)
from tests.harness.privacy_rig import BIG, BOTH, EDGE, TENANTS, PrivacyRig, running_privacy_rig
from tests.harness.redis_server import paused_redis, running_redis

RESULTS = Path(__file__).parent / "results" / "privacy_faults.json"
MARK = re.compile(rb"zq[0-9a-f]{20}")
CLIENTS = 16
# One in so many requests, a pause of Redis longer than the gateway waits for it.
REDIS_PAUSE_EVERY = 250
REDIS_PAUSE_S = 1.2
POLICY_CHANGE_EVERY = 20


@dataclass(slots=True)
class Run:
    """Marks by what may happen to them, and what clients saw."""

    local: set[bytes] = field(default_factory=set)
    free: set[bytes] = field(default_factory=set)
    errors: bytearray = field(default_factory=bytearray)
    statuses: Counter[str] = field(default_factory=Counter)
    num_policy_changes: int = 0
    changing: Privacy = Privacy.ANY
    num_started: int = 0


def main() -> None:
    """Run, print and keep the result; exit status 1 when anything got out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    logs = _capture_logs()
    with running_redis() as state_url, tempfile.TemporaryDirectory(prefix="shoal-p-") as folder:
        result = asyncio.run(_measure(arguments, Path(folder), state_url, logs))
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.save:
        RESULTS.write_text(text + "\n")
    sys.exit(1 if any(result["local_marks_found"].values()) else 0)


def _capture_logs() -> io.StringIO:
    """All logs of this process, libraries' among them, instead of stderr."""
    logs = io.StringIO()
    # Wanted by the captured processors only; the terminal shows the result.
    stderr, sys.stderr = sys.stderr, logs
    try:
        set_up_logs("bench", "debug")
    finally:
        sys.stderr = stderr
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(logs))
    logging.basicConfig(stream=logs, level=logging.DEBUG, force=True)
    return logs


async def _measure(
    arguments: argparse.Namespace, folder: Path, state_url: str, logs: io.StringIO
) -> dict[str, Any]:
    dice = random.Random(arguments.seed)
    run = Run()
    began_s = time.monotonic()
    async with running_privacy_rig(folder, state_url, dice) as rig:
        rig.upstream.script = lambda exchange: _misbehave(exchange, dice)
        await _ask_all(rig, run, dice, arguments.requests)
        async with httpx.AsyncClient(trust_env=False) as http:
            metrics = await http.get(f"{rig.url}/metrics", headers=_bearer(rig.admin_key))
        metrics.raise_for_status()
        state = connect(state_url)
        values = await _values(state)
        await state.aclose()
        seen = {
            "cloud": bytes(rig.upstream.received),
            "redis_commands": bytes(rig.redis_commands),
            "redis_values": values,
            "logs": logs.getvalue().encode(),
            "metrics": metrics.content,
            "error_answers": bytes(run.errors),
        }
    marks = {place: set(MARK.findall(data)) for place, data in seen.items()}
    return {
        "requests": arguments.requests,
        "seed": arguments.seed,
        "seconds": round(time.monotonic() - began_s, 1),
        "local_marks": len(run.local),
        "local_marks_found": {place: len(found & run.local) for place, found in marks.items()},
        # That the search can find something: these were free to leave.
        "free_marks_in_cloud": len(marks["cloud"] & run.free),
        "marks_in_logs": len(marks["logs"]),
        "searched_bytes": {place: len(data) for place, data in seen.items()},
        "answers": dict(run.statuses),
        "policy_changes": run.num_policy_changes,
    }


async def _misbehave(exchange: Exchange, dice: random.Random) -> bool:
    """An endpoint that mostly answers, and quotes what it got wherever it can."""
    said = json.dumps(exchange.body)
    script = dice.choices(
        [
            stream(*GOOD),
            stream(text_chunk(said), text_chunk("", "stop")),
            refuse(400, said),
            refuse(500, said),
            refuse(429, said, retry_after="0"),
            refuse(307, said, location="http://127.0.0.1:9/"),
            stream(text_chunk("cut "), cut=True),
            stream(f"data: {said}, \n\n"),
            stream(json.dumps({"error": {"message": said}})),
            stream(said, content_type="application/json"),
            hang_up,
            silent,
        ],
        weights=[12, 6, 2, 2, 2, 1, 2, 1, 1, 1, 1, 1],
    )[0]
    return await script(exchange)


async def _ask_all(rig: PrivacyRig, run: Run, dice: random.Random, num_requests: int) -> None:
    state = connect(rig.state_url)
    tenants = TenantStore(state)

    async def work(http: httpx.AsyncClient) -> None:
        while run.num_started < num_requests:
            run.num_started += 1
            if run.num_started % REDIS_PAUSE_EVERY == 0:
                with paused_redis(rig.state_url):
                    await asyncio.sleep(REDIS_PAUSE_S)
            if run.num_started % POLICY_CHANGE_EVERY == 0:
                await _change_policy(tenants, run, dice)
            await _ask(http, rig, run, dice)

    async with httpx.AsyncClient(base_url=rig.url, trust_env=False, timeout=30) as http:
        await asyncio.gather(*(work(http) for _ in range(CLIENTS)))
    await state.aclose()


async def _change_policy(tenants: TenantStore, run: Run, dice: random.Random) -> None:
    level = dice.choice([Privacy.ANY, Privacy.LOCAL_ONLY])
    # Uncertain from before the change until after it.
    run.num_policy_changes += 1
    await tenants.put("changing", TenantPolicy(level))
    run.changing = level
    run.num_policy_changes += 1


async def _ask(http: httpx.AsyncClient, rig: PrivacyRig, run: Run, dice: random.Random) -> None:
    tenant = dice.choice([*TENANTS, "changing"])
    asked = dice.choice(["", "any", "local_preferred", "local_only"])
    mark = f"zq{dice.randbytes(10).hex()}"
    level = run.changing if tenant == "changing" else TENANTS[tenant]
    changes = run.num_policy_changes
    path, body = _body(mark, asked, dice)
    local = asked == "local_only" or level in (None, Privacy.LOCAL_ONLY)
    certain = asked == "local_only" or tenant != "changing" or changes % 2 == 0
    if local and certain:
        run.local.add(mark.encode())
    patience_s = dice.uniform(0.001, 0.1) if dice.random() < 0.05 else 30.0
    try:
        async with asyncio.timeout(patience_s):
            answer = await http.post(path, json=body, headers=_bearer(rig.keys[tenant]))
    except TimeoutError:
        run.statuses["client left"] += 1
    else:
        _look_at(run, answer)
    if asked == "local_only" or tenant != "changing":
        unchanged = True
    else:
        # Only a policy that stood for all of the request's life decides over its mark.
        unchanged = changes == run.num_policy_changes and changes % 2 == 0
    if not unchanged:
        run.local.discard(mark.encode())
    elif not local:
        run.free.add(mark.encode())


def _look_at(run: Run, answer: httpx.Response) -> None:
    tier = answer.headers.get("x-shoal-tier", "")
    run.statuses[f"{answer.status_code} {tier}".strip()] += 1
    if answer.status_code != 200:
        run.errors += answer.content
    elif '"error"' in answer.text:
        # An error event after the first token; the text before it is the client's own.
        run.errors += answer.text[answer.text.index('data: {"error"') :].encode()
    run.errors += " ".join(f"{k}: {v}" for k, v in answer.headers.items()).encode()


def _body(mark: str, asked: str, dice: random.Random) -> tuple[str, dict[str, Any]]:
    """A request whose free text is the mark, wherever text may be."""
    body: dict[str, Any] = {
        "model": dice.choice([EDGE, BOTH, BIG]),
        "stream": dice.random() < 0.5,
        "max_tokens": 50,
        "stop": [f"never {mark}"],
        "user": f"user {mark}",
    }
    if asked:
        body["shoal"] = {"privacy": asked}
    if dice.random() < 0.3:
        return "/v1/completions", body | {"prompt": f"The word is {mark}"}
    messages = [
        {"role": "system", "content": f"Keep {mark} to yourself."},
        {"role": "user", "content": f"My secret is {mark}.", "name": mark},
    ]
    return "/v1/chat/completions", body | {"messages": messages}


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def _values(state: Redis) -> bytes:
    """All values in Redis, as it dumps them and as it shows them."""
    seen = bytearray()
    async for key in state.scan_iter(count=1_000):
        seen += key.encode()
        kind = await state.type(key)
        if kind == "string":
            value: Any = await state.get(key)
        elif kind == "hash":
            value = await state.hgetall(key)
        elif kind == "set":
            value = await state.smembers(key)
        elif kind == "zset":
            value = await state.zrange(key, 0, -1)
        elif kind == "stream":
            value = await state.xrange(key)
        else:
            value = await state.lrange(key, 0, -1)
        seen += repr(value).encode()
    return bytes(seen)


if __name__ == "__main__":
    main()
