"""Stop strings: found across token borders, never leaked, not even in part."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import invalid

# OpenAI allows 4; a few more cost nothing. Longer lists or strings are mistakes,
# and each token is matched against all of them.
MAX_STOPS = 16
MAX_STOP_CHARS = 256


def check_stops(stops: Sequence[str]) -> None:
    """Raise a refusal that names `stop` unless the list is one that a matcher takes."""
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"stop: at most {MAX_STOPS} strings are allowed, got {len(stops)}")
    for stop in stops:
        if not stop:
            raise invalid("stop", "stop: an empty string is not allowed")
        if len(stop) > MAX_STOP_CHARS:
            raise invalid(
                "stop",
                f"stop: a string may have {MAX_STOP_CHARS} characters, one has {len(stop)}",
            )


class StopMatcher:
    """Passes text on, holding back what may yet become a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        check_stops(stops)
        self._stops = tuple(stops)
        self._held = ""
        self.matched = False

    def feed(self, text: str) -> str:
        """Text that is certain to be output; after a match, only what precedes it.

        Sets `matched` when a stop string was found; nothing may be fed after that.
        """
        if not self._stops:
            return text
        buffer = self._held + text
        found = [at for stop in self._stops if (at := buffer.find(stop)) >= 0]
        if found:
            self.matched = True
            self._held = ""
            return buffer[: min(found)]
        hold = self._longest_beginning_at_end(buffer)
        cut = len(buffer) - hold
        self._held = buffer[cut:]
        return buffer[:cut]

    def flush(self) -> str:
        """The held text; to be called when the generation ended without a match."""
        held, self._held = self._held, ""
        return held

    def _longest_beginning_at_end(self, buffer: str) -> int:
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(buffer)), longest, -1):
                if buffer.endswith(stop[:length]):
                    longest = length
                    break
        return longest
