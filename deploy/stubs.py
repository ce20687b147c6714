"""Generate the gRPC stubs of proto/ into shoal/v1, or check that they are fresh.

`--check` generates into a temporary directory, compares, and exits with 1 and
the names of the stale files when they differ.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUBS = Path("shoal/v1")


def generate(target: Path) -> None:
    """Write the stubs of all protos below `target`."""
    protos = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("proto/shoal/v1/*.proto"))
    outputs = [f"--{kind}={target}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", *outputs, *protos]
    subprocess.run(command, cwd=ROOT, check=True)


def generated(root: Path) -> dict[str, bytes]:
    """Content of the generated files below `root`, by name."""
    return {path.name: path.read_bytes() for path in sorted((root / STUBS).glob("*_pb2*.py*"))}


def main() -> int:
    """Generate, or with `--check` compare."""
    if "--check" not in sys.argv[1:]:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory))
        fresh, committed = generated(Path(directory)), generated(ROOT)
    stale = [
        name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name)
    ]
    if stale:
        print(
            f"stale stubs in {STUBS}: {', '.join(sorted(stale))}; run `make stubs`", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
