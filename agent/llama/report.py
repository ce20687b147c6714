"""The model report: what a loaded model is and does on this device."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.config import EngineConfig
from agent.llama.context import LlamaRunner
from agent.llama.library import LibraryLog, system_features
from agent.llama.model import Model, fingerprint
from shoal.v1 import engine_pb2
from shoal.wire import ROW_BY_ROW

# "load_tensors:   CPU_REPACK model buffer size =    53.11 MiB": weights that were
# rearranged for the CPU's fast kernels.
_BUFFER = re.compile(r"(\w+) model buffer size\s*=\s*([\d.]+) MiB")


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """Tokens a second; `decode_batch[i]` is the total over 2^i sequences."""

    prefill: float
    decode_batch: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LoadedFacts:
    """What was found out about a model while it was loaded."""

    sha256: str
    speed: MeasuredSpeed | None
    has_chat_template: bool
    # Why prefixes are not cached; empty: they are.
    no_cache_reason: str
    # See ModelReport.block_space.
    block_space: str


def loading_report(config: EngineConfig) -> engine_pb2.ModelReport:
    """The report of an engine that is still loading."""
    return engine_pb2.ModelReport(
        name=config.model_name,
        file=config.model_path.name,
        state=engine_pb2.MODEL_STATE_LOADING,
    )


def ready_report(
    config: EngineConfig, runner: LlamaRunner, library_log: LibraryLog, facts: LoadedFacts
) -> engine_pb2.ModelReport:
    """The report of a loaded model; reads the model's header, measures nothing itself."""
    model: Model = runner.model
    speed = facts.speed
    return engine_pb2.ModelReport(
        name=config.model_name,
        file=config.model_path.name,
        fingerprint=fingerprint(facts.sha256, runner.kv_type),
        architecture=model.architecture,
        quantisation=model.quantisation,
        num_parameters=model.num_parameters,
        size_bytes=model.size_bytes,
        context_tokens=runner.context_tokens,
        train_context_tokens=model.train_context_tokens,
        slots=runner.slots,
        kv_bytes_per_token=model.kv_bytes_per_token(runner.kv_type),
        kv_type=runner.kv_type,
        flash_attention=True,
        kernels=_kernels(runner, library_log),
        prefill_tokens_per_s=speed.prefill if speed else 0.0,
        decode_tokens_per_s=speed.decode_batch[0] if speed else 0.0,
        decode_batch_tokens_per_s=speed.decode_batch if speed else (),
        has_chat_template=facts.has_chat_template,
        state=engine_pb2.MODEL_STATE_READY,
        file_sha256=facts.sha256,
        caches_blocks=not facts.no_cache_reason,
        no_cache_reason=facts.no_cache_reason,
        block_space=facts.block_space,
    )


def _kernels(runner: LlamaRunner, library_log: LibraryLog) -> list[str]:
    kernels = ["flash_attention", *system_features()]
    for line in library_log.load_lines:
        found = _BUFFER.search(line)
        if found:
            kernels.append(f"weights:{found.group(1)}={found.group(2)}MiB")
    # What of the text's independence holds: agent/calibration/trial.py reads these two.
    if runner.cut_invariant:
        kernels.append("prefill:any_cut")
    elif runner.cut_invariant is False:
        kernels.append(ROW_BY_ROW)
    limit = runner.decode_alone_from
    kernels.append(
        "batched_decode:all" if limit is None else f"batched_decode:below_position_{limit}"
    )
    return kernels
