"""Opens the prefix cache of a loaded model, once it is proved that its state can be cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from agent.config import BLOCK_TOKENS, PrefixCacheConfig
from agent.engine.prefixes import CachedPrefixes
from agent.hardware.memory import read_memory
from agent.kv.codec import state_bytes
from agent.kv.opening import KvSettings, open_prefix_cache
from agent.kv.prefix_cache import PrefixCache
from agent.kv.selfcheck import CodecReport, check_codec
from agent.llama.context import KEPT_BLOB_BYTES, LlamaRunner
from agent.llama.library import STATE_SEQ_VERSION, library_version
from agent.llama.measure import Probe
from agent.llama.model import fingerprint
from agent.llama.shared_access import TermsWatch, read_terms
from shoal.blocks import BlockSpace
from shoal.kv_budget import host_tier_bytes

log = structlog.get_logger()


class NotCachedError(Exception):
    """This model's prefixes are not cached here; the text says why."""


def open_prefixes(
    config: PrefixCacheConfig,
    runner: LlamaRunner,
    report: CodecReport,
    file_sha256: str,
    wake: Callable[[], None],
) -> CachedPrefixes:
    """The prefix store of the loaded model, of which `check_blocks` reported.

    A tier that cannot be used is logged and left out.
    """
    any_length = bool(runner.cut_invariant) and report.partial_blocks
    space = BlockSpace(
        model_fingerprint=fingerprint(file_sha256, runner.kv_type),
        key_type=runner.kv_type,
        value_type=runner.kv_type,
        state_version=f"{library_version()}/{STATE_SEQ_VERSION}",
        tenant_salt=b"",
    )
    host_bytes = config.host_bytes
    if host_bytes is None:
        host_bytes = host_tier_bytes(read_memory(Path("/")).available_bytes)
    terms = read_terms(config)
    settings = KvSettings(
        host_bytes,
        config.disk_bytes,
        config.directory,
        fleet_secret=terms.fleet_secret,
        shared=terms.tier,
        any_length=any_length,
    )

    def opened(settings: KvSettings) -> PrefixCache:
        return open_prefix_cache(settings, runner, space, report, wake)

    try:
        cache = opened(settings)
    except OSError as error:
        log.warning("kv_disk_tier_off", error=str(error))
        cache = opened(replace(settings, directory=None))
    shared = settings.shared is not None
    log.info(
        "prefix_cache_open",
        host_bytes=host_bytes,
        shared_tier=shared,
        any_length=cache.any_length,
    )
    return CachedPrefixes(cache, TermsWatch(config, terms))


def check_blocks(config: PrefixCacheConfig | None, probe: Probe) -> CodecReport:
    """Take the probe's first block apart and put it together. Raises NotCachedError."""
    runner = probe.runner
    if config is None:
        raise NotCachedError("switched off")
    reason = runner.model.no_cache_reason
    if reason:
        raise NotCachedError(reason)
    if runner.context_tokens <= BLOCK_TOKENS:
        raise NotCachedError(f"a context of {runner.context_tokens} tokens holds no block")
    probe.reach(BLOCK_TOKENS)
    probe.cut_to(BLOCK_TOKENS)  # no longer than a sliding window
    report = check_codec(runner, 0, runner.slots - 1)
    if report.geometry is None:
        raise NotCachedError(report.reason)
    # Touched now: its first use would cost a request tens of milliseconds.
    longest = state_bytes(report.geometry, report.n_stream, runner.context_tokens)
    runner.state_buffer(min(longest, KEPT_BLOB_BYTES))
    return report
