"""Stop strings and incremental detokenisation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.engine.detokenizer import Detokenizer
from agent.engine.output import SampledToken
from agent.engine.stops import MAX_STOP_CHARS, MAX_STOPS, StopMatcher
from shoal.errors import Reason, ShoalError


def feed_all(matcher: StopMatcher, pieces: list[str]) -> tuple[str, list[str]]:
    """The output, and the output after each piece."""
    out, states = "", []
    for piece in pieces:
        out += matcher.feed(piece)
        states.append(out)
        if matcher.matched:
            return out, states
    return out + matcher.flush(), states


def test_a_stop_string_over_several_pieces_never_leaks_a_prefix():
    out, states = feed_all(StopMatcher(["\nUser:"]), ["Hi", "\n", "Us", "er", ":", "x"])
    assert out == "Hi"
    assert states == ["Hi", "Hi", "Hi", "Hi", "Hi"]


def test_held_text_is_released_when_it_does_not_become_a_stop():
    out, _ = feed_all(StopMatcher(["END"]), ["a E", "N", "ough EN"])
    assert out == "a ENough EN"


def test_the_earliest_of_several_stops_wins():
    assert feed_all(StopMatcher(["bcd", "b"]), ["abcd"])[0] == "a"


def test_a_stop_that_overlaps_itself_is_found():
    assert feed_all(StopMatcher(["aab"]), list("aaaab"))[0] == "aa"


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(1, 4), min_size=30, max_size=30),
)
def test_any_cutting_gives_what_the_whole_text_gives(text, stops, cuts):
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(text[at : at + cut])
        at += cut
    out, states = feed_all(StopMatcher(stops), pieces)
    # A later, longer stop may begin earlier; what was seen first decides.
    first = min((text.find(s) + len(s) for s in stops if s in text), default=None)
    if first is None:
        assert out == text
    else:
        assert not any(stop in out for stop in stops)
        assert text.startswith(out)
    assert all(not any(stop in state for stop in stops) for state in states)


@pytest.mark.parametrize(
    "stops", [["x"] * (MAX_STOPS + 1), ["x"] * 100_000, [""], ["y" * (MAX_STOP_CHARS + 1)]]
)
def test_unusable_stops_are_refused_by_name(stops):
    with pytest.raises(ShoalError) as refused:
        StopMatcher(stops)
    assert refused.value.reason is Reason.INVALID_ARGUMENT
    assert refused.value.param == "stop"


def test_a_character_comes_out_whole():
    text = "é😀"
    detokenizer = Detokenizer(StopMatcher([]))
    outs = [detokenizer.feed(SampledToken(b), bytes([b]))[0] for b in text.encode()]
    assert "".join(outs) == text
    assert outs == ["", "é", "", "", "", "😀"]


def test_bytes_that_never_become_a_character_are_replaced_at_the_end():
    detokenizer = Detokenizer(StopMatcher([]))
    assert detokenizer.feed(SampledToken(1), b"a\xf0\x9f")[0] == "a"
    assert detokenizer.finish()[0] == "\ufffd"


def test_tokens_of_a_stop_string_are_never_released():
    detokenizer = Detokenizer(StopMatcher(["STOP"]))
    released = []
    for token, piece in enumerate([b"ok", b" ST", b"OP", b"!"]):
        text, tokens = detokenizer.feed(SampledToken(token), piece)
        released += [t.token for t in tokens]
        if detokenizer.stopped:
            assert text == ""
            break
    assert released == [0]


def test_tokens_without_text_are_released_with_what_precedes_them():
    detokenizer = Detokenizer(StopMatcher(["zz"]))
    assert detokenizer.feed(SampledToken(1), b"a") == ("a", (SampledToken(1),))
    assert detokenizer.feed(SampledToken(2), b"") == ("", (SampledToken(2),))
    assert detokenizer.feed(SampledToken(3), b"z") == ("", ())
    assert detokenizer.finish() == ("z", (SampledToken(3),))
