"""Drafting and verifying sequences over real llama.cpp contexts, without the wire between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent.engine.lending import Lending
from agent.engine.request import GenerationRequest, RequestKey, SamplingParams
from agent.engine.scheduler import BatchingPolicy, Scheduler
from agent.llama.choosing import NextToken
from agent.llama.context import ContextShape, LlamaRunner
from agent.llama.drafting import DraftedSequence
from agent.llama.library import open_library
from agent.llama.measure import Probe, is_cut_invariant, probe_tokens
from agent.llama.model import Model
from agent.llama.verified import VerifiedSequence
from agent.speculative.acceptance import Draft
from agent.speculative.window import LONGEST_DRAFT
from bench.requantise import requantise
from tests.harness.tiny_llama_model import TinyLlama, write_tiny_llama_model

PROMPT = (1, 70, 71, 72, 73)
GREEDY = SamplingParams(temperature=0.0)
# Upper 1 % of the standard normal distribution.
Z_01 = 2.326


class Side:
    """One model's runner, and slots of it to lend."""

    def __init__(self, file: Path) -> None:
        self.runner = LlamaRunner(Model(file, open_library()), ContextShape(1, 256, 1))
        lending = Lending(self.runner, Scheduler(1, 1, BatchingPolicy(8, 1)))
        self.core: Any = SimpleNamespace(lending=lending)

    def verified(self, sampling: SamplingParams) -> VerifiedSequence:
        sequence = VerifiedSequence(self.core, self.runner, PROMPT, sampling)
        while not sequence.prefill():
            pass
        return sequence

    def drafted(self, sampling: SamplingParams) -> DraftedSequence:
        request = GenerationRequest(RequestKey(1, "r"), PROMPT, sampling, 32)
        sequence = DraftedSequence(self.core, self.runner, request)
        while not sequence.prefill():
            pass
        return sequence

    def distribution(self, sampling: SamplingParams, after: Sequence[int]) -> np.ndarray:
        """This model's own, after the prompt and these tokens."""
        tokens = [*PROMPT, *after]
        self.runner.start(0, GREEDY, ())
        row = self.runner.compute_rows(0, tokens, 0)[-1].copy()
        chosen = NextToken(self.runner.model.vocab.size, sampling, PROMPT, 256)
        found = chosen.probabilities(row, after)
        chosen.close()
        self.runner.clear(0)
        return found


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    folder = tmp_path_factory.mktemp("tiny")
    made = [
        Side(write_tiny_llama_model(folder / f"{seed}.gguf", TinyLlama(seed=seed)))
        for seed in (7, 8)
    ]
    yield made[0], made[1]
    for side in made:
        side.runner.close()


def is_far_fetched(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Whether chi-squared says p < 0.01 (Wilson and Hilferty's approximation).

    Cells that expect less than five are counted as one.
    """
    enough = expected >= 5
    seen = np.append(counts[enough], counts[~enough].sum())
    wanted = np.append(expected[enough], expected[~enough].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    degrees = len(seen) - 1
    spread = 2 / (9 * degrees)
    chi = float(((seen - wanted) ** 2 / wanted).sum())
    return (chi / degrees) ** (1 / 3) > 1 - spread + Z_01 * spread**0.5


def test_sampled_tokens_have_the_targets_distribution(sides: tuple[Side, Side]) -> None:
    draft, target = sides
    trials = 3_000
    size = target.runner.model.vocab.size
    counts = np.zeros((2, size))
    num_stood = 0
    for seed in range(100_000, 100_000 + trials):
        sampling = SamplingParams(temperature=0.8, top_k=30, seed=seed)
        drafting, verifying = draft.drafted(sampling), target.verified(sampling)
        drafts, _ = drafting.draft(2, 0.0, lambda _: 1.0)
        verdict = verifying.verify(drafts)
        num_stood += verdict.num_accepted
        chosen = [each.token for each in verdict.chosen]
        if len(chosen) == 1:
            chosen += [each.token for each in verifying.verify(()).chosen]
        for place in range(2):
            counts[place, chosen[place]] += 1
        drafting.close()
        verifying.close()
    # Neither always nor never: else the rule would not have been tried.
    assert 0.05 < num_stood / (2 * trials) < 0.9
    first = target.distribution(sampling, ())
    second = sum(
        first[token] * target.distribution(sampling, (int(token),))
        for token in np.flatnonzero(first)
    )
    assert not is_far_fetched(counts[0], trials * first)
    assert not is_far_fetched(counts[1], trials * np.asarray(second))
    # The test tells distributions apart: the draft's own is another.
    assert is_far_fetched(counts[0], trials * draft.distribution(sampling, ()))


@pytest.mark.parametrize("kind", ["q8_0", "f16"])
def test_target_whose_rows_round_differently_is_found_at_load(tmp_path: Path, kind: str) -> None:
    model = Model(requantise(tmp_path / "m.gguf", kind), open_library())
    runner = LlamaRunner(model, ContextShape(1, 512, 2))
    tokens = probe_tokens(runner, 64 + LONGEST_DRAFT + 1)

    def logits(*cuts: int) -> list[np.ndarray]:
        """Of the last 17 tokens, computed in pieces of so many."""
        runner.start(0, GREEDY, ())
        runner.prefill(0, tokens[:64], 0, want_token=False)
        place, rows = 64, list[np.ndarray]()
        for cut in cuts:
            rows += [row.copy() for row in runner.compute_rows(0, tokens[place:][:cut], place)]
            place += cut
        return rows

    alone = logits(*(1,) * 17)
    equal = all(
        np.array_equal(one, other)
        for cuts in ((17,), (2, 3, 5, 7), (4, 13))
        for one, other in zip(alone, logits(*cuts), strict=True)
    )
    found = is_cut_invariant(Probe(runner))
    runner.close()
    assert equal or not found


@pytest.mark.parametrize("invariant", [True, False, None])
def test_target_whose_rows_round_differently_computes_one_at_a_time(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch, invariant: bool | None
) -> None:
    _, target = sides
    alone = target.verified(GREEDY)
    own = [token for _ in range(6) for token in alone.verify(()).chosen]
    alone.close()
    rows: list[int] = []
    compute = target.runner.compute_rows

    def counted(slot: int, tokens: Sequence[int], position: int) -> Any:
        rows.append(len(tokens))
        return compute(slot, tokens, position)

    monkeypatch.setattr(target.runner, "compute_rows", counted)
    monkeypatch.setattr(target.runner, "cut_invariant", invariant)
    sequence = target.verified(GREEDY)
    wrong = (own[3].token + 1) % target.runner.model.vocab.size
    drafts = [Draft(token) for token in (*(each.token for each in own[:3]), wrong, 9)]
    verdict = sequence.verify(drafts)
    assert verdict.num_accepted == 3
    assert [each.token for each in verdict.chosen] == [each.token for each in own[:4]]
    assert verdict.num_rows == 6
    # It stops where a draft falls, and goes on from there.
    assert rows == ([1] * 4 if invariant is False else [6])
    assert sequence.verify(()).chosen[0].token == own[4].token
    sequence.close()
