"""Prompts made from a fixed seed, so that every run asks the same."""

from __future__ import annotations

import random

_WORDS = """
river stone market evening ledger copper window garden signal harbour engine
winter letter bridge coffee painter valley record number silver student captain
theory forest island kitchen doctor message planet summer ticket village weather
yellow cotton danger
""".split()  # noqa: SIM905 - a literal list would fill a page


def words(rng: random.Random, count: int) -> str:
    """`count` words, about 1.3 tokens each with SmolLM2's vocabulary."""
    return " ".join(rng.choice(_WORDS) for _ in range(count))


def short_prompts(count: int, seed: int = 1) -> list[list[dict[str, str]]]:
    """Distinct chats of about 70 tokens with the template."""
    rng = random.Random(seed)
    return [
        [{"role": "user", "content": f"Write a short story about: {words(rng, 24)}."}]
        for _ in range(count)
    ]


def long_prompts(count: int, num_words: int = 700, seed: int = 2) -> list[list[dict[str, str]]]:
    """Distinct chats of `num_words` words."""
    rng = random.Random(seed)
    return [
        [{"role": "user", "content": f"{words(rng, num_words)}. Summarise it."}]
        for _ in range(count)
    ]


def shared_prefix_prompts(
    count: int, num_words: int = 700, seed: int = 3
) -> list[list[dict[str, str]]]:
    """Chats that share a system prompt of `num_words` words and differ in the question."""
    rng = random.Random(seed)
    system = words(rng, num_words)
    return [
        [
            {"role": "system", "content": system},
            {"role": "user", "content": f"What about {words(rng, 6)}?"},
        ]
        for _ in range(count)
    ]
