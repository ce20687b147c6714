"""What an agent makes of earlier calibrations: how its engines are started, and what is unknown."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import structlog

from agent.calibration.choosing import Choice
from agent.calibration.idle import Uncalibrated
from agent.calibration.kv_types import KvType, KvWish, choose_kv_type, shortage_of_f16
from agent.calibration.measuring import LIMIT_S
from agent.calibration.store import CalibrationStore, key_of, variants
from agent.hardware.memory import read_memory
from agent.hardware.report import Capabilities
from agent.rpc.engines import Calibrated
from agent.session.config import AgentConfig
from shoal.gguf import GgufError
from shoal.gguf_facts import scan
from shoal.model_names import catalogue_name

log = structlog.get_logger()


def calibrated(
    config: AgentConfig, capabilities: Capabilities
) -> tuple[dict[str, Choice], list[Uncalibrated]]:
    """What was found for just this hardware, version and these files, by model; and the rest.

    Of neither is what could not be calibrated in the usual time, and would not be now.
    """
    store, choices, uncalibrated = CalibrationStore(config.home), {}, []
    for argument in config.models:
        files = variants(argument, config.models_dir)
        name, key = catalogue_name(files[0]), key_of(capabilities, files)
        choice = store.find(name, key)
        if choice is None and (why := store.failed(name, key, LIMIT_S)):
            log.info("not_calibrated", model=name, why=why)
            continue
        if choice is None:
            uncalibrated.append(Uncalibrated(name, key, files))
            continue
        if config.kv_type:
            choice = dataclasses.replace(choice, kv=KvType(config.kv_type, "as its owner says"))
        else:
            choice = with_kv(choice, KvWish(config.slots, config.context_tokens))
        log.info("calibrated", model=name, choice=str(choice))
        choices[name] = choice
    return choices, uncalibrated


def with_kv(choice: Choice, wish: KvWish) -> Choice:
    """The choice with a KV type for the memory that is free now; reads the file's header.

    A file that cannot be read gets f16: the engine says what is wrong with it.
    """
    try:
        shortage = shortage_of_f16(
            scan(choice.file), wish, choice.slots, read_memory(Path("/")).available_bytes
        )
    except (GgufError, OSError):
        return choice
    return dataclasses.replace(choice, kv=choose_kv_type(choice.tried, shortage))


def for_engines(choices: Iterable[Choice]) -> dict[Path, Calibrated]:
    """The choices as engines are started with them, by file."""
    return {
        each.file: Calibrated(each.threads, each.slots, each.kv.name if each.kv else None)
        for each in choices
    }
