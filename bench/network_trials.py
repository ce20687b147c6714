"""The trials of `bench.network`; each returns what was seen and whether it held."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis

from agent.kv.access import SharedAccess
from bench.network_fleet import NetFleet
from shoal.blocks import BLOCK_TOKENS
from tests.harness.fleet import wait_for
from tests.harness.netlab import HOST_ADDRESS

HEARTBEAT_S = 2.0
PARTITION_S = 60.0
NUM_PARTITIONS = 5
HALF_OPEN_LIMIT_S = 20.0
LOSS_S = 300.0
SLOW_MBIT_PER_S = 1.0
# Blocks leave in the background, on a fast link.
OFFERED_WITHIN_S = 30.0


def nat(fleet: NetFleet) -> dict[str, Any]:
    """A device that nobody can dial joins and serves."""
    began = time.monotonic()
    device = fleet.device("behind-nat")
    joined_s = time.monotonic() - began
    answer = fleet.ask(device.name)
    reachable = fleet.lab.reaches("192.168.1.2")
    return {
        "held": answer.status_code == 200 and not reachable,
        "device_can_be_dialled": reachable,
        "answered_by": answer.headers.get("x-shoal-device", ""),
        "seconds_to_serve": round(joined_s, 1),
    }


def half_open(fleet: NetFleet) -> dict[str, Any]:
    """A path that swallows packets one way or both: how long until each side knows."""
    device = fleet.device("half-open")
    ways = {
        "both_ways": {"up": 100, "down": 100},
        "from_device_only": {"up": 100},
        "to_device_only": {"down": 100},
    }
    found: dict[str, Any] = {}
    for way, percents in ways.items():
        wait_for("it serves", lambda: fleet.serves(device.name), timeout_s=60)
        time.sleep(HEARTBEAT_S)
        connections = fleet.link_connections()
        ends = device.log().count("disconnected")
        fleet.lab.lose(device.place, **percents)
        cut = time.monotonic()
        seen: dict[str, float] = {}
        while time.monotonic() - cut < HALF_OPEN_LIMIT_S + 10 and len(seen) < 3:
            now = time.monotonic() - cut
            if "hub_sends_nothing_there" not in seen and fleet.watch(device.name).first(
                {"SUSPECT", "DOWN"}, cut
            ):
                seen["hub_sends_nothing_there"] = now
            if "hub_closed_it" not in seen and fleet.link_connections() < connections:
                seen["hub_closed_it"] = now
            if "device_closed_it" not in seen and device.log().count("disconnected") > ends:
                seen["device_closed_it"] = now
            time.sleep(0.1)
        fleet.lab.heal(device.place)
        found[way] = {name: round(at, 1) for name, at in seen.items()}
    return {
        "held": all(
            len(times) == 3 and max(times.values()) <= HALF_OPEN_LIMIT_S for times in found.values()
        ),
        "limit_s": HALF_OPEN_LIMIT_S,
        "seconds_until": found,
    }


def partition(fleet: NetFleet) -> dict[str, Any]:
    """A minute without a path, several times: back within two heartbeats, the same engine."""
    device = fleet.device("partitioned")
    engines = device.engines()
    seconds = []
    for number in range(NUM_PARTITIONS):
        wait_for("it serves", lambda: fleet.serves(device.name), timeout_s=60)
        fleet.lab.cut(device.place)
        # Not always the same moment of the agent's pauses.
        time.sleep(PARTITION_S + 1.3 * number)
        if fleet.status(device.name)["state"] != "DOWN":
            return {"held": False, "why": "it was not noticed"}
        fleet.lab.heal(device.place)
        healed = time.monotonic()
        watch = fleet.watch(device.name)
        wait_for("READY", lambda: watch.first({"READY"}, healed) is not None, timeout_s=90)  # noqa: B023
        seconds.append(round((watch.first({"READY"}, healed) or 0) - healed, 1))
    answer = fleet.ask(device.name)
    return {
        "held": max(seconds) <= 2 * HEARTBEAT_S
        and len(engines) == 1
        and device.engines() == engines
        and fleet.count(device.name) == 1
        and answer.status_code == 200,
        "partition_s": PARTITION_S,
        "seconds_until_ready": seconds,
        "limit_s": 2 * HEARTBEAT_S,
        "engine_processes": len(device.engines()),
        "same_engine": device.engines() == engines,
        "entries_in_the_fleet": fleet.count(device.name),
        "answers_again": answer.status_code == 200,
    }


def loss(fleet: NetFleet) -> dict[str, Any]:
    """Every tenth packet lost both ways for five minutes, with requests: never DOWN."""
    device = fleet.device("lossy")
    watch = fleet.watch(device.name)
    fleet.lab.lose(device.place, up=10, down=10)
    before = len(watch.seen)
    ends = device.log().count("disconnected")
    began = time.monotonic()
    statuses: dict[str, int] = {}
    while time.monotonic() - began < LOSS_S:
        status = str(fleet.ask(device.name, tokens=16).status_code)
        statuses[status] = statuses.get(status, 0) + 1
        time.sleep(1)
    fleet.lab.heal(device.place)
    changes = [state for _, state in watch.seen[before:]]
    return {
        "held": "DOWN" not in changes,
        "seconds": LOSS_S,
        "false_down": changes.count("DOWN"),
        "suspected": changes.count("SUSPECT"),
        "reconnects": device.log().count("disconnected") - ends,
        "answers": statuses,
    }


def slow_uplink(fleet: NetFleet) -> dict[str, Any]:
    """Blocks over 1 Mbit/s: 1,000 tokens are 24 MB, which take three minutes there.

    The device behind it must compute rather than wait, answer the same, and stay READY
    while it offers blocks of its own.
    """
    fast, slow = fleet.device("fast-link"), fleet.device("slow-link")
    with block_redis() as access:
        for name in (fast.name, slow.name):
            fleet.share_blocks(name, access)
        shared(fleet, access, fast.name, story("first"))
        fetched = timed(fleet, slow.name, story("first"))
        made = shared(fleet, access, fast.name, story("second"))
        watch = fleet.watch(slow.name)
        before = len(watch.seen)
        fleet.lab.limit(fleet.devices[slow.name].place, SLOW_MBIT_PER_S)
        known = timed(fleet, slow.name, story("second"))
        own = timed(fleet, slow.name, story("third"))
        time.sleep(30)  # its own blocks go up meanwhile
        changes = [state for _, state in watch.seen[before:]]
        fleet.lab.unlimit(fleet.devices[slow.name].place)
    return {
        "held": not changes
        and known["text"] == made["text"]
        and fetched["cached"].get("redis", 0) > 0
        and known["seconds"] < 1.5 * own["seconds"] + 1,
        "mbit_per_s": SLOW_MBIT_PER_S,
        "seconds": {
            "computed_on_a_fast_link": made["seconds"],
            "fetched_on_a_fast_link": fetched["seconds"],
            "known_elsewhere_on_the_slow_link": known["seconds"],
            "computed_on_the_slow_link": own["seconds"],
        },
        "cached_tokens_by_tier": {"fast_link": fetched["cached"], "slow_link": known["cached"]},
        "same_text": known["text"] == made["text"],
        "state_changes": changes,
    }


def story(name: str) -> str:
    """A prompt of about 1,000 tokens; two of them share no block."""
    items = " ".join(f"Item {number} lies on shelf {number % 17}." for number in range(90))
    return f"This is the {name} list. {items} Where is item 7?"


def shared(fleet: NetFleet, access: SharedAccess, name: str, prompt: str) -> dict[str, Any]:
    """`timed`, and its prompt's blocks have reached the shared tier. TimeoutError if not."""
    with redis.Redis.from_url(access.login_url) as tier:
        before = int(tier.dbsize())
        answer = timed(fleet, name, prompt)
        blocks = answer["prompt_tokens"] // BLOCK_TOKENS
        wait_for(
            f"{name} shares {blocks} blocks",
            lambda: int(tier.dbsize()) >= before + blocks,
            timeout_s=OFFERED_WITHIN_S,
        )
    return answer


def timed(fleet: NetFleet, name: str, prompt: str) -> dict[str, Any]:
    """One answer, with how long it took and where its prefix came from."""
    began = time.monotonic()
    reply = fleet.ask(name, prompt=prompt, tokens=8)
    reply.raise_for_status()
    body = reply.json()
    return {
        "seconds": round(time.monotonic() - began, 2),
        "text": body["choices"][0]["message"]["content"],
        "cached": body["shoal"].get("cached_tokens_by_tier", {}),
        "prompt_tokens": body["usage"]["prompt_tokens"],
    }


@contextmanager
def block_redis() -> Iterator[SharedAccess]:
    """A Redis of its own at the address that devices can reach."""
    password = secrets.token_hex(16)
    command = [
        *("redis-server", "--bind", HOST_ADDRESS, "--port", "6390", "--save", ""),
        *("--requirepass", password, "--maxmemory", "512mb", "--daemonize", "no"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        url = f"redis://{HOST_ADDRESS}:6390"
        yield SharedAccess(url, "default", password, secrets.token_bytes(32))
    finally:
        process.terminate()
        process.wait()


TRIALS: dict[str, Callable[[NetFleet], dict[str, Any]]] = {
    "nat": nat,
    "half_open": half_open,
    "partition": partition,
    "loss": loss,
    "slow_uplink": slow_uplink,
}
