"""Figures of `shoal bench`: pure functions from what the gateway answers.

The article's columns, for one sequence alone on the device:

- tokens/s = 1000 / ms per token; ms per token is the mean after the first token.
- tokens/J: by the joules of decoding, which are the request's joules by the decode's part
  of its computing time (power is taken to be the same while the prompt is computed).
- EDP (energy-delay product) = joules x seconds, per token of decoding and per request.
- MBU (model bandwidth utilisation) = (weights' bytes + KV bytes read) per token x tokens/s
  / the device's measured memory bandwidth. The article's formula, which is also that of
  Databricks, "LLM Inference Performance Engineering: Best Practices" (2023). Weights are
  the model file's size, so a mixture of experts, which reads a part of them, shows too much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """One model on one device, as the gateway lists it."""

    device: str
    device_id: str
    device_class: str
    emulated: bool
    model: str
    quantisation: str
    size_bytes: int
    kv_bytes_per_token: int
    context_tokens: int
    # Measured by the device; None: it could not.
    memory_bandwidth_gb_s: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """One request's own times and energy; joules None: not known."""

    prompt_tokens: int
    completion_tokens: int
    prefill_ms: float
    tpot_ms: float
    joules: float | None
    joules_estimated: bool
    edp_js: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table; medians of the runs. None: not known."""

    device: str
    device_class: str
    emulated: bool
    model: str
    quantisation: str
    length: int
    prompt_tokens_per_s: float | None
    tokens_per_s: float
    ms_per_token: float
    tokens_per_joule: float | None
    joules_estimated: bool
    edp_js_per_token: float | None
    edp_js_per_request: float | None
    bandwidth_utilisation: float | None


def find_targets(
    devices: Iterable[Mapping[str, Any]], names: Sequence[str], models: Sequence[str]
) -> tuple[list[Target], list[str]]:
    """What can be measured now, and why the rest cannot; empty `names`, `models`: all."""
    targets: list[Target] = []
    skipped: list[str] = []
    for device in devices:
        if names and not {device["name"], device["id"]} & set(names):
            continue
        if device["state"] != "READY":
            skipped.append(f"{device['name']}: {device['state'].lower()}")
            continue
        for model in device["models"]:
            if models and model["name"] not in models:
                continue
            if model["state"] != "READY":
                skipped.append(f"{device['name']} {model['name']}: {model['state'].lower()}")
                continue
            targets.append(_target(device, model))
    return targets, skipped


def _target(device: Mapping[str, Any], model: Mapping[str, Any]) -> Target:
    return Target(
        device=device["name"],
        device_id=device["id"],
        device_class=device["class"],
        emulated=bool(device["emulated"]),
        model=model["name"],
        quantisation=model.get("quantisation", ""),
        size_bytes=int(model["size_bytes"]),
        kv_bytes_per_token=int(model.get("kv_bytes_per_token", 0)),
        context_tokens=int(model["context_tokens"]),
        memory_bandwidth_gb_s=device["capabilities"].get("memory_bandwidth_gb_s"),
    )


def run_of(usage: Mapping[str, Any], extension: Mapping[str, Any]) -> Run:
    """A request's figures from its answer."""
    actual = extension["actual"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Run(
        prompt_tokens=usage["prompt_tokens"] - cached,
        completion_tokens=usage["completion_tokens"],
        prefill_ms=actual["prefill_ms"],
        tpot_ms=actual["tpot_ms"],
        joules=extension["joules"],
        joules_estimated=extension["joules_estimated"],
        edp_js=extension["edp_js"],
    )


def bandwidth_utilisation(
    target: Target, *, mean_context: float, tokens_per_s: float
) -> float | None:
    """MBU as above, 0.5 for half of the bandwidth; None without a measured bandwidth."""
    if not target.memory_bandwidth_gb_s:
        return None
    bytes_per_token = target.size_bytes + target.kv_bytes_per_token * mean_context
    return bytes_per_token * tokens_per_s / (target.memory_bandwidth_gb_s * 1e9)


def summarise(target: Target, length: int, runs: Sequence[Run]) -> Row:
    """The row of these runs, of which there is at least one with two tokens or more."""
    ms_per_token = median(run.tpot_ms for run in runs)
    tokens_per_s = 1000 / ms_per_token
    per_token_j = _median(_decode_joules_per_token(run) for run in runs)
    new_tokens = median(run.completion_tokens for run in runs)
    return Row(
        device=target.device,
        device_class=target.device_class,
        emulated=target.emulated,
        model=target.model,
        quantisation=target.quantisation,
        length=length,
        prompt_tokens_per_s=_median(
            run.prompt_tokens * 1000 / run.prefill_ms if run.prefill_ms > 0 else None
            for run in runs
        ),
        tokens_per_s=tokens_per_s,
        ms_per_token=ms_per_token,
        tokens_per_joule=None if per_token_j is None else 1 / per_token_j,
        joules_estimated=any(run.joules_estimated for run in runs),
        edp_js_per_token=None if per_token_j is None else per_token_j * ms_per_token / 1000,
        edp_js_per_request=_median(run.edp_js for run in runs),
        bandwidth_utilisation=bandwidth_utilisation(
            target, mean_context=length - new_tokens / 2, tokens_per_s=tokens_per_s
        ),
    )


def _decode_joules_per_token(run: Run) -> float | None:
    decoded = run.completion_tokens - 1
    if run.joules is None or run.joules <= 0 or decoded < 1:
        return None
    decode_ms = run.tpot_ms * decoded
    return run.joules * decode_ms / (decode_ms + run.prefill_ms) / decoded


def _median(values: Iterable[float | None]) -> float | None:
    """None when any is not known: a median of some would be of other runs."""
    known = list(values)
    numbers = [value for value in known if value is not None]
    return median(numbers) if numbers and len(numbers) == len(known) else None
