"""Whether two answers say the same, as far as their words tell; pure."""

from __future__ import annotations

import re
from collections import Counter

# Half of the words in common: answers to one question, said in different ways.
AGREES_FROM = 0.5
_WORD = re.compile(r"\w+")


def overlap(first: str, second: str) -> float:
    """F1 of the words that two texts have in common, from 0 to 1 (as in SQuAD's metric).

    1 as well when the shorter one, of at most three words, stands whole in the other: a
    bare answer and a sentence with it.
    """
    words = [_WORD.findall(text.casefold()) for text in (first, second)]
    short, long = sorted(words, key=len)
    if not short:
        return 1.0 if not long else 0.0
    places = range(len(long) - len(short) + 1)
    if len(short) <= 3 and any(long[i : i + len(short)] == short for i in places):
        return 1.0
    common = sum((Counter(short) & Counter(long)).values())
    return 2 * common / (len(short) + len(long))


def agree(first: str, second: str) -> bool:
    """Whether an audit counts the two answers as the same."""
    return overlap(first, second) >= AGREES_FROM
