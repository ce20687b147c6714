from __future__ import annotations

import random

import pytest

from agent.session.requests import RequestLedger
from shoal.errors import Reason, ShoalError


def test_draining_ledger_refuses_new_requests_and_keeps_running_ones() -> None:
    ledger = RequestLedger()
    ledger.open("a", "m")
    ledger.drain("maintenance")
    with pytest.raises(ShoalError, match="maintenance") as caught:
        ledger.open("b", "m")
    assert caught.value.reason is Reason.DRAINING
    assert "a" in ledger


@pytest.mark.parametrize("request_id", ["", "a"])
def test_empty_or_repeated_id_is_refused_by_name(request_id: str) -> None:
    ledger = RequestLedger()
    ledger.open("a", "m")
    with pytest.raises(ShoalError) as caught:
        ledger.open(request_id, "m")
    assert caught.value.param == "request_id"


@pytest.mark.parametrize("seed", range(50))
def test_any_sequence_keeps_both_indexes_alike(seed: int) -> None:
    rng = random.Random(seed)
    ledger = RequestLedger()
    for _ in range(300):
        request_id, model = str(rng.randrange(20)), str(rng.randrange(3))
        action = rng.randrange(20)
        if action < 10 and request_id not in ledger:
            ledger.open(request_id, model)
            assert request_id in ledger
        elif action < 17:
            ledger.close(request_id)
            assert request_id not in ledger
        elif action < 19:
            assert all(gone not in ledger for gone in ledger.close_model(model))
        else:
            ledger.close_all()
            assert len(ledger) == 0
        ledger.check_integrity()
