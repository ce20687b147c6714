from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent.kv.ledger import BlockLedger, SeqKey
from agent.kv.lru import TierIndex
from shoal.blocks import BlockHash


def chain(*path: int) -> tuple[BlockHash, ...]:
    """Hashes of a prompt whose blocks are `path`; a prefix of the path gives the same ones."""
    return tuple(BlockHash(bytes(path[: i + 1])) for i in range(len(path)))


A, B, C = SeqKey(1), SeqKey(2), SeqKey(3)


def test_oldest_use_leaves_first_and_pinned_never() -> None:
    index = TierIndex(3)
    one, two, three, four = chain(1, 2, 3, 4)
    for block in (one, two, three):
        assert index.admit(block, 1) == ()
    index.touch(one)
    assert index.admit(four, 1, pinned=[two]) == (three,)
    assert list(index) == [two, one, four]
    assert index.admit(three, 2, pinned=[two, one]) is None
    assert list(index) == [two, one, four]


def test_second_sequence_waits_for_the_first_ones_prefix_only() -> None:
    ledger = BlockLedger(100, 0)
    ledger.open(A, chain(1, 2, 3), 3)
    ledger.open(B, chain(1, 2, 9), 3)
    assert ledger.claim(A) is None
    wait = ledger.claim(B)
    assert wait is not None
    assert (wait.owner, wait.until_block) == (A, 2)
    assert ledger.awaited_blocks(A) == 2
    ledger.stored(chain(1)[0], 1)
    assert ledger.unblocked() == ()
    ledger.stored(chain(1, 2)[1], 1)
    assert ledger.unblocked() == (B,)
    assert ledger.match(B) == 2
    assert ledger.claim(B) is None
    assert ledger.awaited_blocks(A) == 0
    ledger.check_integrity()


def test_waiters_of_a_lost_owner_plan_anew_and_one_takes_over() -> None:
    ledger = BlockLedger(100, 0)
    for seq in (A, B, C):
        ledger.open(seq, chain(1, 2), 2)
    assert ledger.claim(A) is None
    assert ledger.claim(B) is not None
    assert ledger.claim(C) is not None
    assert set(ledger.close(A)) == {B, C}
    assert ledger.claim(B) is None
    wait = ledger.claim(C)
    assert wait is not None
    assert wait.owner == B


def test_matched_blocks_stay_until_they_are_taken() -> None:
    ledger = BlockLedger(2, 0)
    ledger.stored(chain(1)[0], 1)
    ledger.stored(chain(1, 2)[1], 1)
    ledger.open(A, chain(1, 2), 2)
    assert ledger.match(A) == 2
    assert ledger.stored(chain(7)[0], 1) is None
    ledger.taken(A)
    assert ledger.stored(chain(7)[0], 1) == (chain(1)[0],)
    ledger.check_integrity()


def test_a_prefix_is_evicted_from_its_end() -> None:
    ledger = BlockLedger(4, 0)
    long = chain(1, 2, 3, 4)
    ledger.open(A, long, 4)
    ledger.claim(A)
    for block in long:
        ledger.stored(block, 1)
    ledger.close(A)
    assert ledger.stored(chain(9)[0], 2) == (long[3], long[2])


def test_a_prompt_larger_than_the_host_keeps_its_beginning() -> None:
    ledger = BlockLedger(3, 0)
    long = chain(1, 2, 3, 4, 5)
    ledger.open(A, long, 5)
    ledger.claim(A)
    assert [ledger.stored(block, 1) for block in long] == [(), (), (), None, None]
    ledger.close(A)
    ledger.open(B, long, 5)
    assert ledger.match(B) == 3
    ledger.check_integrity()


def test_a_sequence_has_one_table() -> None:
    ledger = BlockLedger(1, 1)
    ledger.open(A, (), 0)
    with pytest.raises(ValueError, match="has a table"):
        ledger.open(A, (), 0)
    with pytest.raises(ValueError, match="usable"):
        ledger.open(B, chain(1), 2)


paths = st.lists(st.integers(0, 2), min_size=0, max_size=5)


class LedgerMachine(RuleBasedStateMachine):
    """Sequences come, match, claim, compute, are cut off and leave in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = BlockLedger(6, 4)
        self.open: dict[SeqKey, tuple[BlockHash, ...]] = {}
        self.next_key = 0

    @rule(path=paths, spare=st.integers(0, 2))
    def begin(self, path: list[int], spare: int) -> None:
        seq = SeqKey(self.next_key)
        self.next_key += 1
        hashes = chain(*path)
        self.ledger.open(seq, hashes, max(0, len(hashes) - spare))
        self.open[seq] = hashes
        self.ledger.match(seq)
        self.ledger.claim(seq)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), num_bytes=st.integers(1, 3))
    def compute(self, data: st.DataObject, num_bytes: int) -> None:
        seq = data.draw(st.sampled_from(sorted(self.open)))
        claims = sorted(self.ledger.table(seq).claims)
        if claims:
            self.ledger.stored(claims[0], num_bytes)
            for waiting in self.ledger.unblocked():
                self.ledger.match(waiting)
                self.ledger.claim(waiting)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.open)))
        matched = self.ledger.match(seq)
        table = self.ledger.table(seq)
        if table.pinned:
            assert all(block in self.ledger.host for block in table.hashes[:matched])
        self.ledger.taken(seq)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[seq]
        for waiting in self.ledger.close(seq):
            self.ledger.match(waiting)
            self.ledger.claim(waiting)

    @rule(path=paths, num_bytes=st.integers(1, 3))
    def to_disk(self, path: list[int], num_bytes: int) -> None:
        for block in chain(*path):
            self.ledger.disk.admit(block, num_bytes)

    @rule(budget=st.integers(0, 6))
    def shrink(self, budget: int) -> None:
        pinned = [block for block in self.ledger.host if self.ledger.is_pinned(block)]
        self.ledger.host.shrink(budget, pinned)

    @invariant()
    def books_agree(self) -> None:
        self.ledger.check_integrity()

    @invariant()
    def nobody_waits_for_a_sequence_that_is_gone(self) -> None:
        for seq in self.open:
            for waiting in self.ledger.waiting_for(seq):
                assert waiting in self.open

    def teardown(self) -> None:
        for seq in tuple(self.open):
            self.ledger.close(seq)
        self.ledger.check_integrity()
        assert self.ledger.num_tables == 0


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase
