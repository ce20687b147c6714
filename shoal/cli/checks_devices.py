"""What `shoal doctor` sees of serving: swapping on this machine, and what devices complain of."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.cli.checks import Finding, Verdict
from shoal.cli.client import GatewayClient, find_endpoint
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.output import bytes_text
from shoal.home import Home

# Swap traffic is looked at for so long.
LOOK_S = 1.0
_SERVING = ("agent.app", "agent.llama.serve")
_SMALLER = "Use a smaller model, fewer slots or a shorter context; end other programs."
# By the device's own words for what is wrong: what that means for it, and what helps.
_CONDITIONS = {
    "swapping": ("the agent's memory is swapped in and out: tokens come at half speed", _SMALLER),
    "memory_short": ("little memory is left", _SMALLER),
    "throttled": ("the CPU is slowed down, mostly by heat", "Cool it, or lower its load."),
}
# As docs/kv-cache.md lists them; those without a remedy are somebody's wish.
_NOT_SHARED = {
    "no_shared_tier": ("the fleet gave none", ""),
    "policy_never": ("as `--kv-share never` says", ""),
    "auth_failed": (
        "Redis refuses the device's user",
        "The agent asks for it anew within ten minutes; else remove the device and join again.",
    ),
    "unreachable": (
        "Redis does not answer the device",
        "Does the cache's Redis run, and can the device reach its address?",
    ),
    "tier_full": ("Redis is full and does not evict", "Set maxmemory-policy allkeys-lru in it."),
    "write_limit": ("more blocks than --kv-write-limit lets through", "Raise the limit."),
    "queue_full": ("Redis takes blocks more slowly than they come", "Look at the network to it."),
}


def check_swapping(
    root: Path = Path("/"), pause: Callable[[float], None] = time.sleep
) -> list[Finding]:
    """Whether memory of this machine's agents and engines is swapped now.

    `root` holds `proc`; a system without it is not judged.
    """
    before = _swapped_pages(root)
    if before is None:
        return []
    swapped = dict(_in_swap(root))
    if not swapped:
        return [Finding("swapping", Verdict.OK, "no agent or engine has memory in swap")]
    pause(LOOK_S)
    after = _swapped_pages(root)
    pages = 0 if after is None else max(0, after - before)
    held = ", ".join(f"{name} {bytes_text(size)}" for name, size in sorted(swapped.items()))
    if not pages:
        detail = f"in swap, not moved within {LOOK_S:g} s: {held}"
    else:
        detail = f"{pages} pages moved within {LOOK_S:g} s, in swap: {held}"
    return [Finding("swapping", Verdict.NOTE, detail, _SMALLER)]


def check_devices(home: Home) -> list[Finding]:
    """What the devices of a running fleet report; nothing without a fleet."""
    try:
        with_key = GatewayClient(find_endpoint(home, admin=True))
        devices = with_key.get("/shoal/v1/devices")["devices"]
    except CliError as error:
        if error.code is ExitCode.NOT_RUNNING:
            return []
        return [Finding("devices", Verdict.NOTE, error.message, error.remedy)]
    return [*device_findings(devices), *sharing_findings(devices)]


def device_findings(devices: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """One for each condition of a device, and one for all that have none."""
    well = 0
    for device in devices:
        if device["state"] != "READY":
            continue
        told = [
            _words(each)
            for each in (device.get("load") or {}).get("conditions", [])
            if not each.startswith("kv_sharing_")
        ]
        well += not told
        for condition in told:
            meaning, remedy = _CONDITIONS.get(condition, ("as the device says", ""))
            detail = f"{condition}: {meaning}"
            yield Finding(f"device {device['name']}", Verdict.NOTE, detail, remedy)
    if well:
        yield Finding("devices", Verdict.OK, f"{well} ready and without complaint")


def sharing_findings(devices: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Why engines share no KV blocks, those with one reason together; and why some cache none."""
    sharing, by_reason, uncached = 0, defaultdict(list), defaultdict(list)
    for device in devices:
        for model in device["models"] if device["state"] == "READY" else ():
            if model["state"] != "READY":
                continue
            name = f"{device['name']} {model['name']}"
            if not model["caches_blocks"] and model["no_cache_reason"]:
                uncached[_words(model["no_cache_reason"])].append(name)
                continue
            told = (model.get("load") or {}).get("kv_sharing")
            if told and told["not_shared"]:
                by_reason[_words(told["not_shared"])].append(name)
            elif told:
                sharing += 1
    if sharing:
        yield Finding("shared KV blocks", Verdict.OK, f"{sharing} engines share them")
    for reason, names in sorted(by_reason.items()):
        meaning, remedy = _NOT_SHARED.get(reason, ("a newer agent's reason", ""))
        verdict = Verdict.NOTE if remedy else Verdict.OK
        detail = f"not by {', '.join(names)}: {reason}, {meaning}"
        yield Finding("shared KV blocks", verdict, detail, remedy)
    for reason, names in sorted(uncached.items()):
        yield Finding("prefix cache", Verdict.NOTE, f"off for {', '.join(names)}: {reason}")


def _words(told: str) -> str:
    """A device's words, without what would move a terminal's cursor."""
    return "".join(each for each in told[:200] if each.isprintable())


def _swapped_pages(root: Path) -> int | None:
    """Pages swapped in and out since the start; None where the system does not tell."""
    try:
        text = (root / "proc/vmstat").read_text(encoding="utf-8")
    except OSError:
        return None
    return sum(int(count) for count in re.findall(r"^pswp(?:in|out) (\d+)$", text, re.MULTILINE))


def _in_swap(root: Path) -> Iterator[tuple[str, int]]:
    """Agents and engines with memory in swap, and how many bytes."""
    for folder in (root / "proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_text(errors="replace").split("\0")
            module = next((each for each in arguments if each in _SERVING), None)
            status = (folder / "status").read_text(errors="replace") if module else ""
        except OSError:
            continue  # it has ended
        found = re.search(r"^VmSwap:\s+(\d+) kB$", status, re.MULTILINE)
        if found and (num_bytes := 1024 * int(found[1])):
            yield f"{module} {folder.name}", num_bytes
