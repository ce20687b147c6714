"""Model files over HTTP: resumed, kept only when the hash fits."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import httpx

_PARTIAL_CONTENT = 206
_RANGE_NOT_SATISFIABLE = 416
_LIMIT_S = 30.0
# Left free on the disk that a file is fetched to.
HEADROOM_BYTES = 512 * 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HUB_PATH = re.compile(r"[\w.-]+/[\w.-]+/[\w./-]+")

# Called with the bytes that are here and those there are in all (0: unknown).
Progress = Callable[[int, int], None]


def _no_progress(_done_bytes: int, _total_bytes: int) -> None:
    pass


class DownloadError(Exception):
    """The file could not be had, or is not the one that was asked for."""


class DiskFullError(DownloadError):
    """The file does not fit on the disk with the headroom that is kept."""


def check_headroom(folder: Path, wanted_bytes: int) -> None:
    """Raise DiskFullError when so many bytes more would eat into the headroom."""
    free = shutil.disk_usage(folder).free
    if wanted_bytes + HEADROOM_BYTES > free:
        raise DiskFullError(
            f"no room: {wanted_bytes} bytes are needed beside {HEADROOM_BYTES} that are kept "
            f"free, and {free} are free"
        )


def hub_url(source: str, endpoint: str) -> str:
    """The address of `hf://ORG/REPO/FILE` at a Hugging Face hub; raises DownloadError."""
    path = source.removeprefix("hf://")
    if not _HUB_PATH.fullmatch(path) or ".." in path:
        raise DownloadError(f"{source}: expected hf://ORG/REPO/FILE")
    organisation, repository, file = path.split("/", 2)
    return f"{endpoint.rstrip('/')}/{organisation}/{repository}/resolve/main/{file}"


async def hub_sha256(url: str) -> str:
    """The hash that a Hugging Face hub names for a file it stores; raises DownloadError."""
    import httpx  # only who fetches needs an HTTP client

    try:
        async with httpx.AsyncClient(timeout=_LIMIT_S) as client:
            answer = await client.head(url)
    except httpx.HTTPError as error:
        raise DownloadError(f"{url}: {error or type(error).__name__}") from error
    named: str = answer.headers.get("x-linked-etag", "").strip('"').lower()
    if answer.status_code >= 400 or not _SHA256.fullmatch(named):
        raise DownloadError(f"{url}: HTTP {answer.status_code}, and no SHA-256 is named")
    return named


async def download(
    url: str, sha256: str, target: Path, on_progress: Progress = _no_progress
) -> None:
    """Fetch `url` to `target`, resuming an earlier try, and keep it only if the hash fits.

    The partial file stays for the next try when the connection broke, and is
    deleted when its hash is wrong. Without a hash nothing is resumed: what is there might
    be of another file. Raises DownloadError.
    """
    import httpx  # only who fetches needs an HTTP client

    sha256 = sha256.lower()
    if sha256 and await asyncio.to_thread(file_sha256, target) == sha256:
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{sha256[:16] or 'unnamed'}.part")
    if not sha256:
        partial.unlink(missing_ok=True)
    try:
        async with httpx.AsyncClient(
            timeout=httpx.Timeout(_LIMIT_S), follow_redirects=True
        ) as client:
            with partial.open("ab") as file:
                await _fetch(client, url, file, on_progress)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise DownloadError(f"{url}: {error or type(error).__name__}") from error
    await asyncio.to_thread(keep, partial, sha256, target)


def keep(partial: Path, sha256: str, target: Path) -> None:
    """Put the fetched file in its place if its hash fits, else delete it: DownloadError."""
    found = file_sha256(partial)
    if sha256 and found != sha256:
        partial.unlink()
        raise DownloadError(f"{target.name}: SHA-256 is {found}, expected {sha256}")
    partial.replace(target)


async def _fetch(
    client: httpx.AsyncClient, url: str, file: BinaryIO, on_progress: Progress
) -> None:
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
            have_bytes = 0
        declared = response.headers.get("content-length", "")
        rest_bytes = int(declared) if declared.isdecimal() else 0
        check_headroom(Path(file.name).parent, rest_bytes)
        total_bytes = have_bytes + rest_bytes if rest_bytes else 0
        async for chunk in response.aiter_bytes():
            file.write(chunk)
            have_bytes += len(chunk)
            on_progress(have_bytes, total_bytes)
    file.flush()
    os.fsync(file.fileno())


def file_sha256(path: Path) -> str | None:
    """Hex hash of a file; None when it does not exist."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
