"""What calibrations found, kept in the agent's home for as long as nothing changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from agent.calibration.choosing import Choice, Outcome, why_none
from agent.calibration.kv_types import KvTried
from agent.hardware.report import Capabilities
from agent.rpc.model_files import find_model
from shoal import __version__
from shoal.model_names import catalogue_name
from shoal.named_files import named_file

FILE = "calibration.json"


def key_of(device: Capabilities, files: Sequence[Path]) -> str:
    """Names hardware, versions and files: another of any makes a calibration void."""
    try:
        engine = version("llama-cpp-python")
    except PackageNotFoundError:
        engine = ""
    told = [device.cpu_model, *device.cpu_features, str(device.cores), device.architecture]
    told += [str(device.memory_bytes // 2**30), engine, __version__]
    for file in sorted(files):
        stat = file.stat()
        told += [file.name, str(stat.st_size), str(stat.st_mtime_ns)]
    return hashlib.sha256("\0".join(told).encode()).hexdigest()


def variants(argument: str, models_dir: Path) -> list[Path]:
    """The files that serve the model: the one named, else all of the name that are here.

    AgentError when there is none.
    """
    first = find_model(argument, models_dir)
    if named_file(argument) is not None:
        return [first]
    name = catalogue_name(first)
    here = [file for file in sorted(models_dir.glob("*.gguf")) if catalogue_name(file) == name]
    return list(dict.fromkeys([first, *here]))


class CalibrationStore:
    """One JSON file: model name -> key, and the choice or why there is none."""

    def __init__(self, home: Path) -> None:
        self._file = home / FILE

    def find(self, model: str, key: str) -> Choice | None:
        """The choice made for just this; None when there is none that can be read."""
        row = self._read().get(model)
        if not isinstance(row, dict) or row.get("key") != key:
            return None
        try:
            threads = row["threads"]
            choice = Choice(
                Path(row["file"]),
                None if threads is None else int(threads),
                int(row["slots"]),
                KvTried(**row["kv"]),
            )
        except (KeyError, TypeError, ValueError):
            return None
        return choice if choice.file.is_file() else None

    def failed(self, model: str, key: str, limit_s: float) -> str:
        """Why just this could not be calibrated in so much time; empty: that is not known."""
        row = self._read().get(model)
        if not isinstance(row, dict) or row.get("key") != key or "failure" not in row:
            return ""
        for_want_of_time_s = row.get("too_short_s")
        if isinstance(for_want_of_time_s, (int, float)) and for_want_of_time_s < limit_s:
            return ""
        return str(row["failure"])

    def keep(self, model: str, key: str, choice: Choice, tried: Sequence[Outcome]) -> None:
        """Write the choice and what became of each candidate; the file is replaced at once."""
        row = {
            "key": key,
            "file": str(choice.file),
            "threads": choice.threads,
            "slots": choice.slots,
            "kv": asdict(choice.tried),
        }
        self._write(model, row, tried)

    def keep_failure(self, model: str, key: str, limit_s: float, tried: Sequence[Outcome]) -> None:
        """Write that none served, so that it is not measured again at each start.

        What an earlier calibration of just this found stays. Nothing is written for want of
        memory, of which more may be free the next time.
        """
        lacks = {each.lacks for each in tried}
        if self.find(model, key) is not None or "memory" in lacks:
            return
        row: dict[str, object] = {"key": key, "failure": why_none(tried, limit_s)}
        if "time" in lacks:
            row["too_short_s"] = limit_s
        self._write(model, row, tried)

    def _write(self, model: str, row: Mapping[str, object], tried: Sequence[Outcome]) -> None:
        rows = self._read()
        rows[model] = {
            **row,
            "tried": [
                {
                    "candidate": str(outcome.candidate),
                    "failure": outcome.failure,
                    "prefill_tokens_per_s": round(outcome.prefill, 1),
                    "decode_batch_tokens_per_s": [round(r, 1) for r in outcome.decode_batch],
                }
                for outcome in tried
            ],
        }
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(rows, indent=2))
        new.replace(self._file)

    def _read(self) -> dict[str, object]:
        try:
            rows = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        return rows if isinstance(rows, dict) else {}
