"""Keeps message content from posing as the template's own control tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A stretch of prompt text; in a literal one control tokens are plain text."""

    text: str
    is_literal: bool


class ControlTokenGuard:
    """Marks control tokens' texts in contents before, and finds them after, rendering.

    Contents without such a text pass unchanged, so that ordinary prompts are
    tokenised exactly as llama.cpp would tokenise the rendered template.
    """

    def __init__(self, control_texts: Sequence[str], nonce: Callable[[], str]) -> None:
        """`nonce` returns a fresh unguessable string of letters and digits."""
        texts = sorted({text for text in control_texts if text}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._nonce = nonce

    def protect(
        self, contents: Sequence[str]
    ) -> tuple[list[str], Callable[[str], list[PromptPart]]]:
        """The contents to render, and how to cut the rendered text into parts."""
        pattern = self._pattern
        if pattern is None or not any(pattern.search(content) for content in contents):
            return list(contents), lambda rendered: [PromptPart(rendered, False)]
        # Private-use characters around a nonce: no client can have sent it.
        mark = f"\U000f5a0a{self._nonce()}\U000f5a0b"
        found: list[str] = []

        def replace(match: re.Match[str]) -> str:
            found.append(match.group(0))
            return f"{mark}{len(found) - 1}\U000f5a0c"

        marked = [pattern.sub(replace, content) for content in contents]
        cut = re.compile(f"{re.escape(mark)}(\\d+)\U000f5a0c")

        def parts(rendered: str) -> list[PromptPart]:
            pieces = cut.split(rendered)
            return [
                PromptPart(found[int(piece)] if index % 2 else piece, bool(index % 2))
                for index, piece in enumerate(pieces)
                if piece or index % 2
            ]

        return marked, parts
