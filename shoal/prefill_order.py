"""Whose prompt an engine computes next: engines, the router and the simulator agree on it."""

from __future__ import annotations

from collections.abc import Sequence

# One of so many chunks goes to who has had a slot for longest, whatever its length and
# priority: so the oldest prompt keeps a quarter of the speed it has alone however many
# short ones come, each is the oldest some day, and a short one loses one chunk in four.
AGEING_CHUNKS = 4

# Tenant, priority, prompt tokens left to compute.
Prompt = tuple[str, int, float]


def most_urgent(prompts: Sequence[Prompt]) -> int:
    """Index of the one to compute next but for ageing; the first of equals.

    Each tenant sends its most urgent one, by priority and then by length; of those the
    shortest goes first, but a negative priority yields to every tenant's: the same rule by
    which requests wait in the hub. Raises ValueError when there is none.
    """
    if len(prompts) == 1:
        return 0
    firsts: dict[str, int] = {}
    for index, (tenant, priority, left) in enumerate(prompts):
        first = firsts.get(tenant)
        if first is None or (-priority, left) < (-prompts[first][1], prompts[first][2]):
            firsts[tenant] = index
    return min(firsts.values(), key=lambda each: (-min(0, prompts[each][1]), prompts[each][2]))
