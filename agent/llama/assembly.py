"""Builds an engine from its configuration; the only place of the process that does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from agent.config import EngineConfig
from agent.engine.core import EngineCore
from agent.engine.meter import Clocks
from agent.engine.policy import BatchingPolicy
from agent.engine.prefixes import CachedPrefixes
from agent.engine.runner import RunnerError
from agent.engine.scheduler import Scheduler
from agent.engine.template import ChatTemplate, TemplateError, TemplateSource
from agent.hardware.memory import read_memory
from agent.kv.selfcheck import CodecReport
from agent.llama.context import ContextShape, LlamaRunner
from agent.llama.library import open_library
from agent.llama.measure import (
    Probe,
    find_decode_alone_from,
    is_cut_invariant,
    measure_decode,
    measure_prefill,
)
from agent.llama.model import Model, ModelUnusableError, file_sha256
from agent.llama.prefixes import NotCachedError, check_blocks, open_prefixes
from agent.llama.prepare import PromptLimits, RequestPreparer
from agent.llama.report import LoadedFacts, MeasuredSpeed, ready_report
from shoal.kv_budget import LIVE_SHARE_OF_AVAILABLE, default_context_tokens
from shoal.v1 import engine_pb2

log = structlog.get_logger()


class Assembly:
    """The parts of one engine, made in order: core, template, report, preparer."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._runner: LlamaRunner | None = None
        self._template: ChatTemplate | None = None
        self._sha256 = ""
        self._speed: MeasuredSpeed | None = None
        self._no_cache_reason = ""
        self._block_space = ""

    @property
    def runner(self) -> LlamaRunner:
        """The runner, once `make_core` was called."""
        if self._runner is None:
            raise AssertionError("the model is not loaded yet")
        return self._runner

    def make_core(self, wake: Callable[[], None]) -> EngineCore:
        """Load the model, measure it and return the core; on the thread that will own it.

        `wake` is called, from other threads, when the core has something to take in.
        Raises ModelUnusableError or RunnerError.
        """
        config = self._config
        self._library_log = open_library()
        if not config.model_path.is_file():
            raise ModelUnusableError(f"{config.model_path} is not a file")
        with ThreadPoolExecutor(1) as hashing:
            sha256 = hashing.submit(file_sha256, config.model_path)
            model = Model(config.model_path, self._library_log)
            self._runner = LlamaRunner(model, self._shape(model))
            self._sha256 = sha256.result()
        self._library_log.stop_keeping_lines()
        blocks = self._check_and_measure(self._runner)
        policy = BatchingPolicy(config.batch_threshold, config.throughput_chunks)
        scheduler = Scheduler(config.slots, config.max_waiting, policy)
        return EngineCore(
            self._runner,
            scheduler,
            Clocks(time.monotonic, time.time),
            self._open_prefixes(blocks, wake),
            self._speed.prefill if self._speed else 0.0,
        )

    def _check_and_measure(self, runner: LlamaRunner) -> CodecReport | None:
        """Find out what the loaded model can do here; how its KV is cut, None if it is not."""
        config, blocks, prefill = self._config, None, 0.0
        probe = Probe(runner)
        if config.require_batch_invariance:
            runner.decode_alone_from = find_decode_alone_from(probe)
            if runner.decode_alone_from is not None:
                log.warning(
                    "batched_decode_limited",
                    below_position=runner.decode_alone_from,
                    reason="this build of llama.cpp rounds differently in batches",
                )
        if config.measure:
            prefill = measure_prefill(probe)
        if config.require_batch_invariance:
            runner.cut_invariant = is_cut_invariant(probe)
        try:
            blocks = check_blocks(config.prefix_cache, probe)
        except NotCachedError as error:
            self._no_cache_reason = str(error)
            log.info("prefixes_not_cached", reason=str(error))
        probe.close()
        if config.measure:
            self._speed = MeasuredSpeed(prefill, measure_decode(runner))
        return blocks

    def _open_prefixes(
        self, blocks: CodecReport | None, wake: Callable[[], None]
    ) -> CachedPrefixes | None:
        config = self._config.prefix_cache
        if blocks is None or config is None:
            return None
        cached = open_prefixes(config, self.runner, blocks, self._sha256, wake)
        self._block_space = cached.shared_space
        return cached

    async def start_template(self) -> ChatTemplate | None:
        """The model's chat template, compiled; None when it has none that works."""
        model = self.runner.model
        text = model.chat_template
        if not text:
            log.info("no_chat_template", model=self._config.model_name)
            return None
        template = ChatTemplate(TemplateSource(text, model.vocab.bos_text, model.vocab.eos_text))
        try:
            await template.start()
        except TemplateError as error:
            log.warning("chat_template_unusable", error=str(error))
            return None
        self._template = template
        return template

    async def close_template(self) -> None:
        """End the template's process, if there is one."""
        if self._template is not None:
            await self._template.close()

    def preparer(self, template: ChatTemplate | None) -> RequestPreparer:
        """What turns wire requests into requests to this model."""
        limits = PromptLimits(self._config.model_name, self.runner.context_tokens)
        return RequestPreparer(self.runner.model.vocab, template, limits)

    def report(self) -> engine_pb2.ModelReport:
        """The model report, once core and template were made."""
        facts = LoadedFacts(
            self._sha256,
            self._speed,
            self._template is not None,
            self._no_cache_reason,
            self._block_space,
        )
        return ready_report(self._config, self.runner, self._library_log, facts)

    def _shape(self, model: Model) -> ContextShape:
        config = self._config
        return ContextShape(
            slots=config.slots,
            context_tokens=config.context_tokens or self._context_that_fits(model),
            threads=config.threads or len(os.sched_getaffinity(0)),
            kv_type=config.kv_type,
        )

    def _context_that_fits(self, model: Model) -> int:
        """The trained context, or what a share of the available memory holds."""
        config, slots = self._config, self._config.slots
        fits = default_context_tokens(
            read_memory(Path("/")).available_bytes,
            model.kv_bytes_per_token(config.kv_type),
            slots,
            model.train_context_tokens,
        )
        if fits <= 0:
            raise RunnerError(
                f"memory is short: {slots} sequences do not fit into "
                f"{LIVE_SHARE_OF_AVAILABLE:.0%} of what is available; lower --slots"
            )
        return fits
