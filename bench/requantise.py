"""Make the Q4_0 file that the figures were measured with from the packaged Q4_1 one.

    python -m bench.requantise SmolLM2-135M-Instruct.Q4_0.gguf

Requantising loses quality; the file is for comparing speed only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import llama_cpp.llama_cpp as llama

from tests.harness.models import smollm2_file


def main() -> None:
    """Write the file; raises RuntimeError when llama.cpp refuses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("destination", type=Path)
    destination: Path = parser.parse_args().destination
    llama.llama_backend_init()
    params = llama.llama_model_quantize_default_params()
    params.ftype = llama.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = True
    code = llama.llama_model_quantize(
        str(smollm2_file()).encode(), str(destination).encode(), params
    )
    if code != 0:
        raise RuntimeError(f"llama_model_quantize returned {code}")
    print(destination)


if __name__ == "__main__":
    main()
