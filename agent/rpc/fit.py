"""`python -m agent.rpc.fit MODEL`: how much of a model fits into this device's memory.

Reads the file's header and the memory that is free now; loads nothing. Prints one
JSON object; exit code 2 and the reason on stderr when the model cannot be judged.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from agent.hardware.memory import read_memory
from agent.rpc.model_files import find_model
from agent.session.errors import AgentError
from shoal.gguf import GgufError
from shoal.gguf_facts import scan
from shoal.kv_budget import ELEMENT_BYTES, MIB, FitRequest, default_context_tokens, plan_kv

_BAD_INPUT = 2


def main(arguments: Sequence[str]) -> int:
    """Print the calculation; the exit code."""
    parser = argparse.ArgumentParser(prog="agent.rpc.fit", description=__doc__)
    parser.add_argument("model", help="GGUF file, or name of a model that is here")
    parser.add_argument("--models-dir", type=Path, default=Path(), help="where names are looked up")
    parser.add_argument("--slots", type=int, default=8, help="sequences that run at once")
    parser.add_argument("--context", type=int, help="tokens a sequence; default: as trained")
    parser.add_argument("--kv-type", choices=sorted(ELEMENT_BYTES), default="f16")
    parser.add_argument("--memory-mib", type=int, help="free memory; default: this device's")
    options = parser.parse_args(arguments)
    try:
        file = find_model(options.model, options.models_dir)
        facts = scan(file)
    except (AgentError, GgufError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return _BAD_INPUT
    shape, trained_tokens = facts.kv_shape(options.kv_type), facts.context_tokens
    free_bytes = (
        read_memory(Path("/")).available_bytes
        if options.memory_mib is None
        else options.memory_mib * MIB
    )
    context = options.context or trained_tokens
    plan = plan_kv(FitRequest(shape, facts.file_bytes, free_bytes, options.slots, context))
    context_by_default = default_context_tokens(
        free_bytes, shape.bytes_per_token, options.slots, trained_tokens
    )
    if context_by_default:
        told = f"{context_by_default:>10} tokens a sequence  (a quarter of what is free, at most "
        told += f"the {trained_tokens} it was trained for)"
    else:
        told = f"too little for {options.slots} slots, which share a quarter of what is free; "
        told += "ask for fewer, or name the context"
    told = f"by default           {told}"
    document = asdict(plan) | {
        "lines": [*plan.lines, told] if plan.fits else list(plan.lines),
        "default_context_tokens": context_by_default,
        "fits": plan.fits,
        "file": file.name,
        "bytes_per_token": shape.bytes_per_token,
        "trained_context_tokens": trained_tokens,
    }
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
