"""Builds a model's prefix cache from settings: the one place that joins tiers, keys and codec."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.kv.cache import BlockCache, CacheConfig
from agent.kv.disk import DiskTier
from agent.kv.layout import Geometry
from agent.kv.prefix_cache import PrefixCache
from agent.kv.redis_tier import SharedTier
from agent.kv.seal import Sealer
from agent.kv.selfcheck import CodecReport, StatePort
from agent.kv.sharing import SharedTierConfig
from shoal.blocks import BlockSpace

_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class KvSettings:
    """Tiers and their limits. No directory: no disk tier; no `shared`: no shared tier."""

    host_bytes: int
    disk_bytes: int = 0
    directory: Path | None = None  # of this device; models get folders of their own in it
    fleet_secret: bytes = b""  # needed for the shared tier; the same on every agent
    shared: SharedTierConfig | None = None
    any_length: bool = False  # the engine's KV does not depend on cuts (agent.kv.tails)


def open_prefix_cache(
    settings: KvSettings,
    port: StatePort,
    space: BlockSpace,
    report: CodecReport,
    wake: Callable[[], None],
) -> PrefixCache:
    """The cache of one loaded model whose codec check passed.

    Raises ValueError when it did not, or for a shared tier without a fleet secret,
    and OSError when the disk tier's directory cannot be used.
    """
    geometry = report.geometry
    if geometry is None:
        raise ValueError(f"this model cannot be cached: {report.reason}")
    if settings.shared is not None and not settings.fleet_secret:
        raise ValueError("shared KV blocks need the fleet's secret")
    disk = None
    secret = settings.fleet_secret
    if settings.directory is not None and settings.disk_bytes > 0:
        folder = settings.directory / model_folder(space, geometry)
        disk = DiskTier(folder)
        secret = secret or local_secret(settings.directory / "secret")
    sealer = Sealer(secret or secrets.token_bytes(_SECRET_BYTES), geometry)
    shared = None if settings.shared is None else SharedTier(settings.shared, sealer)
    config = CacheConfig(settings.host_bytes, settings.disk_bytes, wake)
    cache = BlockCache(config, sealer, disk, shared)
    context = (geometry, report.n_stream)
    return PrefixCache(cache, port, space, context, any_length=settings.any_length)


def model_folder(space: BlockSpace, geometry: Geometry) -> str:
    """The disk tier's folder of one model: another model, KV type or version has another."""
    return f"{space.key().hex()[:24]}-{geometry.digest().hex()[:8]}"


def local_secret(path: Path) -> bytes:
    """This device's own sealing secret, made (mode 0600) when it is not there.

    A damaged one is replaced: the blocks sealed with it are then computed again.
    """
    if path.is_file() and len(found := path.read_bytes()) == _SECRET_BYTES:
        return found
    made = secrets.token_bytes(_SECRET_BYTES)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(made)
    if path.exists():
        temporary.replace(path)
        return made
    try:
        os.link(temporary, path)
    except FileExistsError:  # another engine of this device was faster
        return path.read_bytes()
    finally:
        temporary.unlink()
    return made
