"""`shoal devices show`: all that is known of one device."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape
from rich.table import Table

from shoal.cli.commands import admin_client, reported
from shoal.cli.inspect import STATE_COLOURS, DeviceArgument, clock_text, find_device
from shoal.cli.output import JsonFlag, answer, bytes_text, print_json
from shoal.selector import CALIBRATED

# The agent's label of a model that it serves as calibrated: the model's name goes behind it.

Row = tuple[str, str]


@reported
def show_device(device: DeviceArgument, as_json: JsonFlag = False) -> None:
    """Show one device: state, hardware, models, what was calibrated, certificate, conditions."""
    found = find_device(admin_client().get("/shoal/v1/devices")["devices"], device)
    if as_json:
        print_json(found)
        return
    colour = STATE_COLOURS.get(found["state"], "red")
    answer.print(f"[bold]{escape(found['name'])}[/bold]  [{colour}]{found['state']}[/{colour}]")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows_of(found, time.time()):
        table.add_row(name, escape(value))
    answer.print(table)


def rows_of(device: dict[str, Any], now_unix_s: float) -> Iterator[Row]:
    """What is known of a device by name; what it did not tell is left out."""
    told = device["capabilities"]
    yield from _membership(device, now_unix_s)
    yield from _hardware(told)
    yield from _power(told, device.get("load"))
    yield from [("accelerator", _accelerator_text(each)) for each in told.get("accelerators", [])]
    yield from [("condition", text) for text in (device.get("load") or {}).get("conditions", [])]
    for model in device["models"]:
        yield from _model(model)
    for label, choice in sorted(told.get("labels", {}).items()):
        if label.startswith(CALIBRATED):
            yield "calibrated", f"{label.removeprefix(CALIBRATED)}: {choice}"
    for model, sums in sorted(device.get("local_served", {}).items()):
        yield "served on its own port", f"{model}: {sums.get('finished', 0):.0f} requests"
    yield from [("note", text) for text in told.get("notes", [])]


def _membership(device: dict[str, Any], now_unix_s: float) -> Iterator[Row]:
    kind = device["class"] or "not known"
    if device["emulated"]:
        kind += f" (emulated; the hardware is {device['detected_class'] or 'of no known class'})"
    yield "class", kind
    yield "id", device["id"]
    if seen := device["last_seen_unix_ms"]:
        yield "last seen", _time_text(seen, now_unix_s) + clock_text(device)
    if device["hub"]:
        yield "hub", f"{device['hub']}, epoch {device['epoch']}"
    if device["agent_version"]:
        release = device["installation"]["release"]
        yield (
            "agent",
            f"{device['agent_version']}, protocol {device['protocol']}"
            + (f", release {release}" if release else ""),
        )
    if failed := device["installation"]["failed_release"]:
        yield "upgrade given up", f"{failed}: {device['installation']['failure']}"
    if expires := device["certificate_expires_unix_ms"]:
        yield "certificate", f"expires {_time_text(expires, now_unix_s)}; it is renewed before"
    if labels := device.get("labels"):
        yield "labels", ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
    yield "running", str(device["in_flight"])


def _hardware(told: dict[str, Any]) -> Iterator[Row]:
    labels = told.get("labels", {})
    if board := labels.get("board"):
        yield "board", board
    if told.get("os"):
        yield "system", f"{told['os']}, {told['architecture']}, host {told['hostname']}"
    if told.get("cores"):
        yield "CPU", f"{told['cpu_model'] or 'model not told'}, {told['cores']} cores"
        yield "instruction sets", " ".join(told["cpu_features"]) or "none that is known"
    if memory := int(told.get("memory_bytes", 0)):
        speed = told.get("memory_bandwidth_gb_s")
        measured = "bandwidth not measured" if speed is None else f"{speed:.1f} GB/s measured"
        yield "memory", f"{bytes_text(memory)}, {measured}"
    if vulkan := labels.get("vulkan"):
        yield "Vulkan drivers", vulkan


def _power(told: dict[str, Any], load: dict[str, Any] | None) -> Iterator[Row]:
    labels = told.get("labels", {})
    parts = [told.get("power_source", "")]
    parts += [f"battery {labels['batteries']}"] if "batteries" in labels else []
    if told.get("tdp_w") is not None:
        parts.append(f"{told['tdp_w']:.0f} W at most ({labels.get('tdp', 'as told')})")
    if load is not None and load.get("power_w") is not None:
        kind = "estimated" if load["power_estimated"] else "measured"
        parts.append(f"now {load['power_w']:.1f} W {kind}")
    if any(parts):
        yield "power", ", ".join(part for part in parts if part)
    if told.get("cores"):
        yield "meters", ", ".join(told["power_meters"]) or "none: joules are estimated"
    if load is None or not int(load.get("memory_total_bytes", 0)):
        return
    heat = load.get("temperature_c")
    memory = bytes_text(int(load["memory_available_bytes"]))
    text = f"CPU {load['cpu_percent']:.0f} %, {memory} of memory available"
    yield "load", text + ("" if heat is None else f", {heat:.0f} °C")
    if zones := labels.get("thermal_zones"):
        yield "thermal zones", zones


def _accelerator_text(each: dict[str, Any]) -> str:
    text = f"{each['kind'].upper()} {each['vendor']} {each['model']}"
    if size := int(each["memory_bytes"]):
        text += f", {bytes_text(size)}" + (" unified" if each["unified_memory"] else "")
    return f"{text}, " + (f"served by {each['served_by']}" if each["served_by"] else "not served")


def _model(model: dict[str, Any]) -> Iterator[Row]:
    if model["state"] != "READY":
        yield "model", f"{model['name']}: {model['state'].lower()} {model['failure']}".rstrip()
        return
    yield "model", model["name"] + (f" ({model['condition']})" if model["condition"] else "")
    served = f"through {model['companion']}" if model["companion"] else model["file"]
    yield (
        "",
        (
            f"{served}, {model['quantisation'] or 'quantisation not told'}, "
            f"{model['slots']} slots of {model['context_tokens']} tokens, "
            f"KV in {model['kv_type'] or 'a type that is not told'}"
        ),
    )
    yield (
        "",
        (
            f"prefill {model['prefill_tokens_per_s']:.0f}, decode {_speeds(model)} tokens/s "
            f"{_batches(model['decode_batch_tokens_per_s'])}".rstrip()
        ),
    )
    cached = "prompts are cached" if model["caches_blocks"] else model["no_cache_reason"]
    prints = f"fingerprint {model['fingerprint'][:16]}" if model["fingerprint"] else ""
    yield "", ", ".join(part for part in (prints, cached) if part)


def _speeds(model: dict[str, Any]) -> str:
    batch = model["decode_batch_tokens_per_s"] or [model["decode_tokens_per_s"]]
    return ", ".join(f"{speed:.0f}" for speed in batch)


def _batches(batch: Sequence[float]) -> str:
    return f"with 1 to {len(batch)} sequences at once" if len(batch) > 1 else ""


def _time_text(unix_ms: int, now_unix_s: float) -> str:
    """`2026-12-03 00:21 UTC (in 23 h)`; a past one `(5 s ago)`."""
    away_s = unix_ms / 1000 - now_unix_s
    amount, unit = abs(away_s), "s"
    for size, larger in ((60, "min"), (60, "h"), (24, "days")):
        if amount < 2 * size:
            break
        amount, unit = amount / size, larger
    far = f"{amount:.0f} {unit}"
    stamp = datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{stamp} ({f'in {far}' if away_s > 0 else f'{far} ago'})"
