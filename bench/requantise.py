"""Make the files that the figures were measured with from the packaged Q4_1 one.

    python -m bench.requantise SmolLM2-135M-Instruct.Q4_0.gguf
    python -m bench.requantise --type q8_0 SmolLM2-135M-Instruct.Q8_0.gguf

Requantising loses quality, and gains none; the files are for comparing speed only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import llama_cpp.llama_cpp as llama

from tests.harness.models import smollm2_file

_TYPES = {
    "q4_0": llama.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q8_0": llama.LLAMA_FTYPE_MOSTLY_Q8_0,
    "f16": llama.LLAMA_FTYPE_MOSTLY_F16,
}


def requantise(destination: Path, kind: str) -> Path:
    """Write the packaged model as `kind` (a key of `_TYPES`); raises RuntimeError if refused."""
    llama.llama_backend_init()
    params = llama.llama_model_quantize_default_params()
    params.ftype = _TYPES[kind]
    params.allow_requantize = True
    code = llama.llama_model_quantize(
        str(smollm2_file()).encode(), str(destination).encode(), params
    )
    if code != 0:
        raise RuntimeError(f"llama_model_quantize returned {code}")
    return destination


def main() -> None:
    """Write the file that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--type", choices=tuple(_TYPES), default="q4_0")
    options = parser.parse_args()
    print(requantise(options.destination, options.type))


if __name__ == "__main__":
    main()
