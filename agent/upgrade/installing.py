"""An environment for another version beside the running one.

It begins as a copy of the running environment, so that a version with the same
dependencies needs no package index; only the difference is installed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.config import engine_build_environment
from agent.upgrade.folder import COMPLETE, UpgradeFolder
from shoal.model_fetch import DownloadError, download
from shoal.v1 import device_pb2 as pb

_CONSTRAINTS = "constraints.txt"
# In the environment of a device that serves by companions only; install.sh writes it.
WITHOUT_ENGINE = "without_engine"
# pip with a slow index; building an engine on a small board takes most of an hour.
_PIP_LIMIT_S = 900.0
_ENGINE_LIMIT_S = 3_600.0
_LOAD_LIMIT_S = 120.0
_SPARE_BYTES = 200_000_000
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


class UpgradeError(Exception):
    """The version was not installed; the running one is untouched."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to install: the first file is the wheel."""

    version: str
    files: Sequence[pb.UpgradeFile]

    @property
    def release(self) -> str:
        """Name of its environment: version and the wheel's hash."""
        return f"{self.version}-{self.files[0].sha256[:12]}"


async def fetch(order: Order, gateway_url: str, folder: UpgradeFolder) -> Path:
    """Download the order's files, each against its hash, and return their folder."""
    if not order.files or not _PLAIN.fullmatch(order.version):
        raise UpgradeError("the order names no version or no wheel")
    target = folder.path / "files" / order.release
    for file in order.files:
        parts = file.name.split("/")
        if not all(_PLAIN.fullmatch(part) for part in parts):
            raise UpgradeError(f"the order names the file {file.name[:100]!r}")
        url = f"{gateway_url.rstrip('/')}/shoal/v1/agent/{file.name}"
        try:
            await download(url, file.sha256, target.joinpath(*parts))
        except DownloadError as error:
            raise UpgradeError(str(error)) from error
    return target


async def install(order: Order, files: Path, folder: UpgradeFolder, prefix: Path) -> str:
    """Make the release's environment, unless it is there and whole; returns the release."""
    target = folder.versions / order.release
    if (target / COMPLETE).is_file():
        return order.release
    await asyncio.to_thread(_copy_environment, target)
    wheel = str(files.joinpath(*order.files[0].name.split("/")))
    python = str(target / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    pip += ["--no-compile"]
    if await _run([*pip, "--no-index", wheel], _PIP_LIMIT_S):
        constraints = ["--constraint", str(files / _CONSTRAINTS)]
        failure = await _run([*pip, "--only-binary", ":all:", *constraints, wheel], _PIP_LIMIT_S)
        if failure:
            raise UpgradeError(f"its packages could not be installed: {failure}")
    # Also when a wheel of the same version with other bytes was there.
    same = ["--no-index", "--no-deps", "--force-reinstall", wheel]
    if failure := await _run([*pip, *same], _PIP_LIMIT_S):
        raise UpgradeError(f"its wheel could not be installed: {failure}")
    builder = target / "share" / "shoal" / "deploy" / "build_engine.py"
    wheels = ["--wheels", str(files / "engine"), "--wheels", str(prefix / "cache/shoal/wheels")]
    # The model to prove it with: no package of the default model is installed here.
    for model in sorted((prefix / "models").glob("*.gguf"))[:1]:
        wheels += ["--model", str(model)]
    loads = "import agent.app"
    if not (target / WITHOUT_ENGINE).exists():
        loads += ", agent.llama.serve"
        environment = engine_build_environment(folder.path / "cache")
        if failure := await _run([python, str(builder), *wheels], _ENGINE_LIMIT_S, environment):
            raise UpgradeError(f"its engine does not work on this CPU: {failure}")
    if failure := await _run([python, "-c", loads], _LOAD_LIMIT_S):
        raise UpgradeError(f"it cannot be loaded: {failure}")
    (target / COMPLETE).touch()
    return order.release


def _copy_environment(target: Path) -> None:
    """Files are linked where that is allowed: they are replaced, never written into."""
    source = Path(sys.prefix).resolve()
    if target.exists():
        shutil.rmtree(target)
    size_bytes = sum(path.lstat().st_size for path in source.rglob("*") if not path.is_symlink())
    target.parent.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(target.parent).free
    if free_bytes < size_bytes + _SPARE_BYTES:
        raise UpgradeError(
            f"{free_bytes // 10**6} MB of disk are free, {(size_bytes + _SPARE_BYTES) // 10**6} MB "
            "are needed for a second environment"
        )
    skipped = shutil.ignore_patterns("__pycache__", COMPLETE)
    shutil.copytree(source, target, symlinks=True, ignore=skipped, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


async def _run(
    command: Sequence[str], limit_s: float, environment: dict[str, str] | None = None
) -> str:
    """Run a child from the root folder; its last words when it failed, empty when it did not."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd="/",
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(limit_s):
            _, said = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"it did not end within {limit_s:.0f} s"
    except asyncio.CancelledError:
        process.kill()
        raise
    if process.returncode == 0:
        return ""
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else f"exit code {process.returncode}"
