"""llama-cpp-python's source release, with the attention that cut and batch invariance need.

llama.cpp's CPU attention has three algorithms that round differently: one for a
lone token with 512 or more KV cells, one for fewer than 64 rows, one for more. So
a text depends on what else runs and on where its prompt was cut. Built with
`kernels/row_attention.inc`, every row is computed alike whatever is computed
beside it; it is also faster for a few rows over many cells (bench/attention.py).
Its large buffers (weights, KV) ask for huge pages, which Linux gives by default only
to who asks: a step reads all of them, and looks each 4-KiB page up anew.
An unchanged library works too: the engine measures the difference at load, decodes
long sequences one by one, and reuses only whole blocks.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement in one file of the release; `old` occurs there exactly once."""

    path: str
    old: str
    new: str


_BASE = "vendor/llama.cpp/ggml/src"
_CPU = f"{_BASE}/ggml-cpu"
# Copied beside the sources that include them.
KERNELS = (Path(__file__).parent / "kernels" / "row_attention.inc",)
CHANGES = (
    Change(
        f"{_CPU}/ops.cpp",
        "void ggml_compute_forward_flash_attn_ext(\n",
        '#include "row_attention.inc"\n\nvoid ggml_compute_forward_flash_attn_ext(\n',
    ),
    Change(
        f"{_CPU}/ops.cpp",
        "                // uses F32 accumulators\n",
        "                if (!params->use_ref && "
        "shoal::computes(dst->src[0], dst->src[1], dst->src[2])) {\n"
        "                    shoal::row_attention(params, dst);\n"
        "                    break;\n"
        "                }\n"
        "                // uses F32 accumulators\n",
    ),
    Change(
        f"{_CPU}/ops.h",
        "void ggml_compute_forward_flash_attn_ext(",
        "size_t shoal_row_attention_bytes(const struct ggml_tensor * node, int threads);\n"
        "void ggml_compute_forward_flash_attn_ext(",
    ),
    Change(
        f"{_CPU}/ggml-cpu.c",
        "cur += MAX(prefill, decode);",
        "cur += MAX(MAX(prefill, decode), shoal_row_attention_bytes(node, n_tasks));",
    ),
    Change(
        f"{_BASE}/ggml.c",
        "void * ggml_aligned_malloc(size_t size) {\n",
        "#ifdef __linux__\n#include <sys/mman.h>\n#endif\n\n"
        "void * ggml_aligned_malloc(size_t size) {\n",
    ),
    Change(
        f"{_BASE}/ggml.c",
        "    int result = posix_memalign(&aligned_memory, alignment, size);\n",
        "   #ifdef MADV_HUGEPAGE\n"
        "    const size_t huge = 2u << 20;\n"
        "    const bool large = size >= 4 * huge;\n"
        "    int result = posix_memalign(&aligned_memory, large ? huge : alignment, size);\n"
        "    if (result == 0 && large) {\n"
        "        madvise(aligned_memory, size, MADV_HUGEPAGE); // a wish: its failure is no error\n"
        "    }\n"
        "   #else\n"
        "    int result = posix_memalign(&aligned_memory, alignment, size);\n"
        "   #endif\n",
    ),
)


class SourceChangedError(Exception):
    """The release does not hold the text that a change replaces."""


def changes_digest() -> str:
    """Hex digest that is part of a built wheel's cache key."""
    parts = [part for change in CHANGES for part in (change.path, change.old, change.new)]
    text = "\n".join([*parts, *(kernel.read_text() for kernel in KERNELS)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def unpack_changed(package: str, version: str, folder: Path) -> Path:
    """Download the source release into `folder`, unpack and change it; the source's folder.

    Raises SourceChangedError when a change does not apply, CalledProcessError when
    the download fails.
    """
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"),
            *("--no-binary", package, "--dest", str(folder), f"{package}=={version}"),
        ],
        check=True,
    )
    archive = next(folder.glob("*.tar.gz"))
    with tarfile.open(archive) as release:
        release.extractall(folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz")
    for change in CHANGES:
        apply(source, change)
    for kernel in KERNELS:
        shutil.copy(kernel, source / _CPU)
    return source


def apply(source: Path, change: Change) -> None:
    """Make one change below `source`; raises SourceChangedError when it does not fit."""
    path = source / change.path
    text = path.read_text()
    if text.count(change.old) != 1:
        raise SourceChangedError(
            f"{change.path}: expected once, found {text.count(change.old)} times: {change.old!r}"
        )
    path.write_text(text.replace(change.old, change.new))
