"""Short questions without answers, made from a fixed seed: what a calibration is tried on."""

from __future__ import annotations

import random

_NOUNS = """
apple river hammer teacher violin castle spider bread mountain doctor candle ocean bicycle
tiger garden mirror soldier butter planet rabbit engine pencil winter needle camel island
farmer pepper window whale forest kettle baker silver eagle bridge cotton painter lemon
desert rocket sailor honey ladder beaver temple flute carpet judge onion glacier helmet
dragon sugar lantern goat harbour button nurse coffee canyon saddle lawyer cheese statue
owl blanket pilot tomato volcano anchor singer rice tunnel basket dancer salmon valley
barrel wolf paper bishop cherry swamp drum trumpet hunter garlic meadow crown actor turtle
brick compass chef walnut cave
""".split()  # noqa: SIM905 - a literal list would fill a page
_QUESTIONS = (
    "What colour is a {noun}?",
    "How many letters has the word {noun}?",
    "What is the plural of {noun}?",
    "Which letter does the word {noun} begin with?",
    "Which letter does the word {noun} end with?",
    "What is the French word for {noun}?",
    "What is the Spanish word for {noun}?",
    "Name one thing that belongs to a {noun}.",
    "Where would you look for a {noun}?",
    "Is a {noun} alive?",
    "Is a {noun} larger than a car?",
    "Can you eat a {noun}?",
    "What rhymes with {noun}?",
    "What is a {noun} made of?",
    "Which word is the odd one out: {noun}, {other}, Monday?",
    "Which is heavier, a {noun} or a {other}?",
    "Which comes first in a dictionary, {noun} or {other}?",
    "What is {a} plus {b}?",
    "What is {a} times {c}?",
    "What is {a} minus {c}?",
    "Which is larger, {a} or {b}?",
    "Is {a} an even number?",
    "Which number comes after {a}?",
    "How many days are {c} weeks?",
)


def unlabelled_questions(count: int, seed: int = 5) -> list[str]:
    """Distinct questions of about ten words, of two dozen kinds; there are some thousands."""
    dice = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        noun, other = dice.sample(_NOUNS, 2)
        numbers = {"a": dice.randint(2, 999), "b": dice.randint(2, 999), "c": dice.randint(2, 19)}
        form = dice.choice(_QUESTIONS)
        found[form.format(noun=noun, other=other, **numbers)] = None
    return list(found)
