import pytest

from agent.session.errors import ExitCode
from shoal.cli.restarting import FIRST_PAUSE_S, MAX_PAUSE_S, STEADY_S, comes_back, next_pause_s


@pytest.mark.parametrize("exit_status", [-9, -15, -11, ExitCode.INTERNAL, ExitCode.UNREACHABLE])
def test_failed_agent_is_started_again(exit_status: int) -> None:
    assert comes_back("agent", exit_status)


@pytest.mark.parametrize(
    "exit_status", sorted(set(ExitCode) - {ExitCode.INTERNAL, ExitCode.UNREACHABLE})
)
def test_agent_that_left_or_was_refused_is_let_go(exit_status: int) -> None:
    assert not comes_back("agent", exit_status)


@pytest.mark.parametrize("exit_status", [0, 1, -9])
def test_redis_is_always_started_again(exit_status: int) -> None:
    assert comes_back("redis", exit_status)


def test_pauses_grow_to_a_limit_and_start_anew_after_a_steady_life() -> None:
    pauses_s = [FIRST_PAUSE_S]
    for _ in range(8):
        pauses_s.append(next_pause_s(pauses_s[-1], lived_s=1))
    assert pauses_s[:4] == [1, 2, 4, 8]
    assert pauses_s[-1] == MAX_PAUSE_S
    assert next_pause_s(MAX_PAUSE_S, STEADY_S + 1) == FIRST_PAUSE_S
