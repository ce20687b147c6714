"""The codec against the real library and model: restored state is bit-identical."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.kv.codec import compose_state, parse_state
from agent.kv.layout import LayoutFault, StateLayoutError
from agent.kv.selfcheck import check_codec
from shoal.blocks import BLOCK_TOKENS
from tests.harness.kv_llama import Engine, llama, loaded_model
from tests.harness.models import smollm2_file
from tests.harness.tiny_recurrent_model import write_tiny_recurrent_model
from tests.harness.tiny_window_model import NUM_VOCAB, write_tiny_window_model

pytest.importorskip("llama_cpp")
NUM_BLOCKS = 2


@pytest.fixture(scope="module")
def model() -> Iterator[object]:
    with loaded_model(smollm2_file()) as loaded:
        yield loaded


@pytest.mark.parametrize("kv_type", ["GGML_TYPE_F16", "GGML_TYPE_Q8_0"])
def test_blocks_restored_in_another_context_continue_bit_identically(
    model: object, kv_type: str
) -> None:
    rng = random.Random(7)
    prefix = [rng.randrange(1000, 40000) for _ in range(NUM_BLOCKS * BLOCK_TOKENS)]
    question = [rng.randrange(1000, 40000) for _ in range(21)]
    first = Engine(model, 3, getattr(llama, kv_type))
    second = Engine(model, 2, getattr(llama, kv_type))
    try:
        cold = first.decode(2, 0, prefix + question)
        report = check_codec(first, 2, 0)
        assert report.caches_blocks, report.reason
        assert report.geometry is not None
        state = parse_state(first.state_get(2), 2, report.geometry)
        assert state.num_tokens == len(prefix) + len(question)
        blocks = [state.copy_block(index) for index in range(state.num_blocks)]
        assert len(blocks) == NUM_BLOCKS
        for engine, n_stream, seq in ((first, 3, 1), (second, 2, 0), (second, 2, 1)):
            blob = compose_state(report.geometry, n_stream, seq, blocks)
            assert engine.state_set(seq, blob.data) == len(blob)
            warm = engine.decode(seq, len(prefix), question)
            np.testing.assert_array_equal(warm, cold)
        with pytest.raises(StateLayoutError) as caught:
            parse_state(first.state_get(2), 1)
        assert caught.value.fault is LayoutFault.WRONG_SEQUENCE
        first.clear(1)
        with pytest.raises(StateLayoutError) as caught:
            parse_state(first.state_get(1), 1)
        assert caught.value.fault in (LayoutFault.EMPTY, LayoutFault.TRUNCATED)
    finally:
        first.close()
        second.close()


def test_a_sliding_window_model_restores_past_its_window_bit_identically(tmp_path: Path) -> None:
    rng = random.Random(9)
    prefix = [rng.randrange(NUM_VOCAB) for _ in range(3 * BLOCK_TOKENS)]
    question = [rng.randrange(NUM_VOCAB) for _ in range(40)]
    with loaded_model(write_tiny_window_model(tmp_path / "tiny.gguf")) as tiny:
        first = Engine(tiny, 2, llama.GGML_TYPE_F16)
        second = Engine(tiny, 3, llama.GGML_TYPE_F16)
        blocks = []
        for start in range(0, len(prefix), BLOCK_TOKENS):
            first.decode(0, start, prefix[start : start + BLOCK_TOKENS])
            if start == 0:
                report = check_codec(first, 0, 1)
                assert report.caches_blocks, report.reason
                assert report.geometry is not None
                assert report.geometry.has_window
            state = parse_state(first.state_get(0), 0, report.geometry)
            blocks.append(state.copy_block(start // BLOCK_TOKENS))
        assert not state.has_block(0)
        cold = first.decode(0, len(prefix), question)
        blob = compose_state(state.geometry, 3, 2, blocks)
        assert second.state_set(2, blob.data) == len(blob)
        warm = second.decode(2, len(prefix), question)
        np.testing.assert_array_equal(warm, cold)
        assert np.ptp(cold) > 0
        first.close()
        second.close()


def test_a_recurrent_model_is_said_to_have_no_blocks(tmp_path: Path) -> None:
    with loaded_model(write_tiny_recurrent_model(tmp_path / "tiny.gguf")) as tiny:
        engine = Engine(tiny, 2, llama.GGML_TYPE_F32)
        engine.decode(0, 0, [1, 2, 3] * 60)
        report = check_codec(engine, 0, 1)
        assert not report.caches_blocks
        assert "unknown KV state layout" in report.reason
        engine.close()
