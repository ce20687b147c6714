"""Two real agents of which one is slow, or freezes: shoal's router against others.

    python -m bench.two_agents --model FILE [--seconds 40] [--rounds 1]
        [--with haproxy smg --llama-server PATH]

Each agent has a core and an engine thread of its own (on a machine with two or more).

Throttled: one engine runs a fifth of the time. A closed loop of 16 clients, routed by shoal,
then in turn to one and the other (the request names the device), then in fixed splits of the
clients, of which the best is the ideal. Tokens count that came within the measured time. The
warm-up lets the first answers of the slowed engine come, from which the router learns.

Frozen: 24 requests at once; a second later one whole device (agent and engine) gets SIGSTOP,
then, in a second run, its engine alone. A client whose stream is lost asks again. Compared
with the same 24 requests sent to the other device from the start.

`--with` repeats both with other routers in front of two llama-servers on the same file, slots
and threads (bench/other_routers.py): HAProxy by least connections, and smg, a router for LLMs
from the package index. Their ideal is the best fixed split of the clients over the same
llama-servers without a router; what is frozen there is one server's process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from bench.load import Target
from bench.machine import machine
from bench.other_routers import ROUTERS, Servers, in_front, two_llama_servers, why_missing
from bench.pair import NAMES, Pair, pair, stopped, throttled
from bench.two_loops import BURST, CLIENTS, Choice, Figures, Loop, Way, burst, closed_loop

RESULTS = Path(__file__).parent / "results"
FAST, SLOW = NAMES
THROTTLE = 5.0
SPLITS = [0, 1, 2, 3, 4, 5]
SLOTS, CONTEXT = 8, 2048
FREEZE_AFTER_S = 1.0


def run_throttled(running: Pair, loop: Loop, counts: list[int]) -> Figures:
    """Shoal, round robin and the fixed splits, one engine throttled all the while."""
    ways = {name: Way(running.target, name) for name in NAMES}
    with throttled(running.engine(SLOW), THROTTLE):
        shoal = _looped("shoal", _always(Way(running.target)), loop)
        round_robin = _looped("round robin", lambda _, number: ways[NAMES[number % 2]], loop)
        splits = _splits(ways, loop, counts)
    return {
        "shoal": shoal,
        "round_robin": round_robin,
        "splits_clients_on_slow": splits,
        "throughput_to_ideal": _ratio(shoal["tokens_per_s"], _ideal(splits)),
        "ttft_p95_to_round_robin": _ratio(shoal["ttft_p95_ms"], round_robin["ttft_p95_ms"]),
    }


def run_throttled_behind(
    servers: Servers, routers: Sequence[str], loop: Loop, counts: list[int]
) -> Figures:
    """The same by other routers, one llama-server throttled all the while."""
    ways = {name: Way(target) for name, target in servers.targets.items()}
    with throttled(servers.processes[SLOW], THROTTLE):
        rows = {}
        for router in routers:
            with in_front(router, servers) as target:
                rows[router] = _looped(router, _always(Way(target)), loop)
        round_robin = _looped(
            "llama-servers, round robin", lambda _, number: ways[NAMES[number % 2]], loop
        )
        splits = _splits(ways, loop, counts)
    for row in rows.values():
        row["throughput_to_ideal"] = _ratio(row["tokens_per_s"], _ideal(splits))
        row["ttft_p95_to_round_robin"] = _ratio(row["ttft_p95_ms"], round_robin["ttft_p95_ms"])
    return {**rows, "round_robin": round_robin, "splits_clients_on_slow": splits}


def _always(way: Way) -> Choice:
    return lambda _, __: way


def _looped(what: str, choose: Choice, loop: Loop) -> Figures:
    figures = asyncio.run(closed_loop(choose, loop))
    _say(what, figures)
    return figures


def _splits(ways: dict[str, Way], loop: Loop, counts: list[int]) -> dict[int, Figures]:
    def split(count: int) -> Choice:
        return lambda client, _: ways[SLOW if client < count else FAST]

    return {
        count: _looped(f"{count} of {CLIENTS} clients on the slow one", split(count), loop)
        for count in counts
    }


def _ideal(splits: dict[int, Figures]) -> float:
    return max(float(str(split["tokens_per_s"])) for split in splits.values())


def run_frozen(running: Pair) -> Figures:
    """The burst with one device frozen, with its engine frozen, and with the other alone."""
    alone = _alone(Way(running.target, FAST))
    report: Figures = {"other_alone": alone}
    for name, processes in (
        ("device_frozen", running.processes(SLOW)),
        ("engine_frozen", [running.engine(SLOW)]),
    ):
        report[name] = _frozen(name, running.target, processes, alone)
        running.wait_ready()
    return report


def run_frozen_behind(servers: Servers, routers: Sequence[str]) -> Figures:
    """The burst through other routers, with one llama-server frozen."""
    alone = _alone(Way(servers.targets[FAST]))
    report: Figures = {"other_alone": alone}
    for router in routers:
        with in_front(router, servers) as target:
            report[router] = _frozen(router, target, [servers.processes[SLOW]], alone)
    return report


def _alone(way: Way) -> Figures:
    alone = asyncio.run(burst(way, asyncio.Event()))
    _say("the other device alone", alone)
    return alone


def _frozen(what: str, target: Target, processes: list[psutil.Process], alone: Figures) -> Figures:
    figures = asyncio.run(_burst_with_freeze(target, processes))
    _say(what, figures)
    return {**figures, "to_alone": _ratio(figures["all_finished_s"], alone["all_finished_s"])}


async def _burst_with_freeze(target: Target, processes: list[psutil.Process]) -> Figures:
    begun = asyncio.Event()
    load = asyncio.create_task(burst(Way(target), begun))
    await begun.wait()
    await asyncio.sleep(FREEZE_AFTER_S)
    with stopped(processes):
        return await load


def _ratio(figure: object, of: object) -> float:
    return round(float(str(figure)) / float(str(of)), 3)


def _say(what: str, figures: Figures) -> None:
    print(f"{what}: {json.dumps(figures)}", file=sys.stderr, flush=True)


def one_round(options: argparse.Namespace, routers: Sequence[str]) -> Figures:
    """Shoal first, then the others, each alone on the machine."""
    loop = Loop(options.warm, options.seconds, options.tokens)
    model, figures = options.model.absolute(), dict[str, object]()
    with pair(model, slots=SLOTS) as running:
        if options.part != "throttled":
            figures["frozen"] = run_frozen(running)
        if options.part != "frozen":
            figures["throttled"] = run_throttled(running, loop, options.splits)
    if routers:
        with two_llama_servers(options.llama_server, model, slots=SLOTS, context=CONTEXT) as two:
            if options.part != "throttled":
                figures["frozen_behind"] = run_frozen_behind(two, routers)
            if options.part != "frozen":
                figures["throttled_behind"] = run_throttled_behind(
                    two, routers, loop, options.splits
                )
    return figures


def main() -> None:
    """Parse arguments, run, write bench/results/two_agents.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=40.0, help="measured, of each loop")
    parser.add_argument("--warm", type=float, default=30.0, help="seconds before, not measured")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer, throttled")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--part", choices=("both", "frozen", "throttled"), default="both")
    parser.add_argument(
        "--splits", type=int, nargs="+", default=SPLITS, help="clients on the slow device"
    )
    parser.add_argument("--with", dest="routers", nargs="+", choices=ROUTERS, default=[])
    parser.add_argument("--llama-server", type=Path, help="binary; bench.build_llama_server")
    parser.add_argument("--out", type=Path, default=RESULTS / "two_agents.json")
    options = parser.parse_args()
    if options.routers and options.llama_server is None:
        parser.error("--with needs --llama-server")
    missing = {router: why for router in options.routers if (why := why_missing(router))}
    for router, why in missing.items():
        print(f"{router} is left out: {why}", file=sys.stderr)
    routers = [router for router in options.routers if router not in missing]
    rounds = [one_round(options, routers) for _ in range(options.rounds)]
    report = {
        "machine": machine(), "model": options.model.name, "clients": CLIENTS,
        "throttle": THROTTLE, "burst": BURST, "seconds": options.seconds, "tokens": options.tokens,
        "left_out": missing, "rounds": rounds,
    }  # fmt: skip
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
