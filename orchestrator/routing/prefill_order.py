"""Which prompts an engine computes before a new one: least left first, the oldest in between."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.prefill_order import AGEING_CHUNKS

# Of four chunks one is the oldest prompt's: so each three of a shorter prompt's own are
# held up by one of a longer.
_OWN_CHUNKS_FOR_ONE = AGEING_CHUNKS - 1


def tokens_ahead(own_tokens: int, others: Sequence[int], all_tokens: int) -> float:
    """Prompt tokens that are computed before the last of a new prompt of `own_tokens`.

    `others`: prompts that are there and not computed, as far as their lengths are known;
    `all_tokens`: what waits there in all. The rest is taken to go first.
    """
    if not others:
        return all_tokens
    total = sum(others)
    longer = sum([tokens for tokens in others if tokens > own_tokens])
    before = max(total, all_tokens) - longer
    return before + min(longer, own_tokens / _OWN_CHUNKS_FOR_ONE) if longer else before
