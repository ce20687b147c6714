"""Takes a model file in: finds or fetches it, hashes it, scans it.

Sources: a path on this machine, `pip:PACKAGE:FILE` of an installed package (found, not
imported), an http(s) URL, `hf://ORG/REPO/FILE`. Files that lie here stay where they are;
fetched ones are kept below the models' folder.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from orchestrator.catalogue.model import Variant
from shoal.gguf import GgufError
from shoal.gguf_facts import GgufFacts, scan
from shoal.model_fetch import DownloadError, download, file_sha256, hub_sha256, hub_url
from shoal.model_names import catalogue_name
from shoal.named_files import named_file

# Of a source in a message: a longer one is no path.
_TOLD_CHARS = 200
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


class IntakeError(Exception):
    """The file cannot be taken in; the text says why."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be taken in; `sha256` and `name` may be empty."""

    source: str
    sha256: str
    name: str
    models_dir: Path
    hub_endpoint: str


# Called with the stage, and bytes done and in all.
Told = Callable[[str, int, int], None]


async def take_in(order: Order, unix_ms: int, told: Told) -> Variant:
    """The variant that the source is. Raises IntakeError."""
    try:
        path = await _locate(order, told)
        told("hashing", 0, path.stat().st_size)
        found = await asyncio.to_thread(file_sha256, path)
        told("scanning", 0, 0)
        facts = await asyncio.to_thread(scan, path)
    except (GgufError, DownloadError, OSError, ValueError) as error:
        why = str(error)  # of a download it begins with the address
        named = why if why.startswith(order.source) else f"{order.source[:_TOLD_CHARS]}: {why}"
        raise IntakeError(named) from error
    if order.sha256 and found != order.sha256.lower():
        raise IntakeError(f"{order.source}: SHA-256 is {found}, expected {order.sha256.lower()}")
    name = order.name or catalogue_name(path)
    if not _NAME.fullmatch(name):
        raise IntakeError(f"{name[:100]!r} is no model name: lower-case letters, digits, '._-'")
    return _variant(order, path, facts, (name, found or "", unix_ms))


def _variant(order: Order, path: Path, facts: GgufFacts, what: tuple[str, str, int]) -> Variant:
    name, sha256, unix_ms = what
    return Variant(
        sha256=sha256,
        model=name,
        file=path.name,
        path=str(path),
        quantisation=facts.quantisation,
        architecture=facts.architecture,
        num_parameters=facts.num_parameters,
        size_bytes=facts.file_bytes,
        context_tokens=facts.context_tokens,
        num_layers=facts.num_layers,
        num_kv_heads=facts.num_kv_heads,
        key_head_dim=facts.key_head_dim,
        value_head_dim=facts.value_head_dim,
        has_chat_template=facts.has_chat_template,
        source=order.source,
        added_unix_ms=unix_ms,
    )


async def _locate(order: Order, told: Told) -> Path:
    source = order.source
    if source.startswith("pip:"):
        return _of_package(source)
    if source.startswith(("http://", "https://", "hf://")):
        return await _fetched(order, told)
    return await asyncio.to_thread(_of_this_machine, source)


async def _fetched(order: Order, told: Told) -> Path:
    url, sha256 = order.source, order.sha256.lower()
    if url.startswith("hf://"):
        url = hub_url(url, order.hub_endpoint)
        sha256 = sha256 or await hub_sha256(url)
    file = _UNSAFE.sub("-", unquote(urlsplit(url).path).rpartition("/")[2])[-120:].lstrip(".-")
    if not file.lower().endswith(".gguf"):
        raise IntakeError(f"{order.source}: the address names no .gguf file")
    target = order.models_dir / "fetched" / (sha256[:16] or "unnamed") / file
    await download(url, sha256, target, lambda done, total: told("fetching", done, total))
    return target


def _of_this_machine(source: str) -> Path:
    path = os.path.expanduser(source)
    if not os.path.isabs(path) or not os.path.exists(path):
        why = "no such file on the orchestrator's machine"
    elif (file := named_file(path)) is not None:
        return file.resolve()
    else:
        why = "not a regular file"
    raise IntakeError(f"{source[:_TOLD_CHARS]}: {why}")


def _of_package(source: str) -> Path:
    _, package, file = [*source.split(":", 2), "", ""][:3]
    module = package.replace("-", "_")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        root = Path(folder).resolve()
        path = (root / file).resolve()
        if path.is_relative_to(root) and path.is_file():
            return path
    raise IntakeError(
        f"{source}: expected pip:PACKAGE:FILE of an installed package; "
        f"`pip install --no-deps {package or 'PACKAGE'}` on the orchestrator's machine"
    )
