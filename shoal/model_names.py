"""Catalogue names of models, from the names of their files."""

from __future__ import annotations

import re
from pathlib import PurePath

# The suffix with which llama.cpp's files name their quantisation: Q4_1, IQ3_XXS,
# Q4_K_M, UD-Q4_K_XL, F16, BF16, TQ1_0, MXFP4.
_QUANTISATION = re.compile(
    r"[.\-_](?:ud-)?(?:i?q\d(?:_[0-9a-z]+)*|tq\d_\d|b?f16|f32|mxfp4(?:_moe)?)$", re.IGNORECASE
)
# One part of a model split over several files.
_SPLIT = re.compile(r"-\d{5}-of-\d{5}$", re.IGNORECASE)
_UNSAFE = re.compile(r"[^a-z0-9._-]+")


def catalogue_name(path: str | PurePath) -> str:
    """The name requests use: the file's stem, lower-case, without quantisation suffix.

    `SmolLM2-135M-Instruct.Q4_1.gguf` is `smollm2-135m-instruct`. All variants of a
    model share a name; characters that a URL would escape become `-`.
    """
    name = PurePath(path).name
    if name.lower().endswith(".gguf"):
        name = name[: -len(".gguf")]
    name = _QUANTISATION.sub("", _SPLIT.sub("", name))
    return _UNSAFE.sub("-", name.lower()).strip("-.") or "model"


def quantisation(path: str | PurePath) -> str:
    """The quantisation that the file's name claims, upper-case; empty when it names none."""
    stem = _SPLIT.sub("", re.sub(r"\.gguf$", "", PurePath(path).name, flags=re.IGNORECASE))
    found = _QUANTISATION.search(stem)
    return found.group(0)[1:].upper() if found else ""


if __name__ == "__main__":  # the install script asks, without an environment
    import sys

    print(catalogue_name(sys.argv[1]))
