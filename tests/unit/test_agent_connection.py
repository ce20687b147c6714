from __future__ import annotations

import random

import pytest

from agent.session import connection as conn
from agent.session.backoff import BASE_S, CAP_S, Backoff
from agent.session.errors import ExitCode
from agent.session.rejection import RejectReason


def dialled(now: float = 0.0, seed: int = 1) -> conn.Connection:
    connection = conn.Connection(Backoff(random.Random(seed)), now=now)
    assert connection.handle(conn.Tick(), now) == [conn.Dial(0)]
    return connection


def connected(now: float = 0.0) -> conn.Connection:
    connection = dialled(now)
    assert connection.handle(conn.Welcomed(7, 2.0, 10.0), now) == [conn.Announce(7)]
    return connection


def test_first_heartbeat_is_immediate_and_the_next_after_the_hubs_interval() -> None:
    connection = connected()
    assert connection.handle(conn.Tick(), 0.0) == [conn.SendHeartbeat()]
    assert connection.handle(conn.Tick(), 1.9) == []
    assert connection.handle(conn.Tick(), 2.0) == [conn.SendHeartbeat()]


def test_hub_changes_the_interval_in_its_answer() -> None:
    connection = connected()
    connection.handle(conn.Tick(), 0.0)
    connection.handle(conn.Acknowledged(0.5, 0.0), 0.1)
    assert connection.deadline() == pytest.approx(0.5)


def test_hub_that_does_not_answer_for_a_lease_is_dropped() -> None:
    connection = connected()
    for now in (0.0, 2.0, 4.0, 6.0, 8.0):
        connection.handle(conn.Tick(), now)
    effects = connection.handle(conn.Tick(), 10.0)
    assert isinstance(effects[0], conn.Drop)
    assert connection.phase is conn.Phase.WAITING


def test_missing_welcome_is_a_failed_attempt() -> None:
    connection = dialled()
    effects = connection.handle(conn.Tick(), conn.GREETING_S)
    assert isinstance(effects[0], conn.Drop)


def test_pause_that_began_without_a_network_ends_with_it() -> None:
    connection = dialled()
    now = 0.0
    for _ in range(12):
        connection.handle(conn.Broken("unreachable"), now)
        now = connection.deadline() or 0.0
        connection.handle(conn.Tick(), now)
    connection.handle(conn.Broken("unreachable"), now)
    assert connection.handle(conn.Reachable(), now) == []
    assert (connection.deadline() or 0.0) <= now + conn.USUAL_INTERVAL_S / 2


def test_dial_into_nothing_is_made_anew_when_the_network_is_back() -> None:
    connection = dialled()
    effects = connection.handle(conn.Reachable(), 9.0)
    assert isinstance(effects[0], conn.Drop)
    assert (connection.deadline() or 0.0) <= 9.0 + conn.USUAL_INTERVAL_S / 2


def test_reachable_port_changes_nothing_for_a_connection_that_is_up() -> None:
    connection = connected()
    deadline = connection.deadline()
    assert connection.handle(conn.Reachable(), 1.0) == []
    assert connection.phase is conn.Phase.CONNECTED
    assert connection.deadline() == deadline


def test_delays_grow_to_the_cap_with_full_jitter() -> None:
    backoff = Backoff(random.Random(3))
    delays = [backoff.next_delay_s() for _ in range(200)]
    assert all(delay <= BASE_S for delay in delays[:1])
    assert max(delays) <= CAP_S
    assert min(delays[20:]) < CAP_S / 4  # full jitter, not the cap each time


def test_connection_that_lived_makes_the_next_retry_quick() -> None:
    connection = dialled()
    now = 0.0
    for _ in range(10):
        connection.handle(conn.Broken("refused"), now)
        now = connection.deadline() or 0.0
        connection.handle(conn.Tick(), now)
    connection.handle(conn.Welcomed(1, 2.0, 10.0), now)
    connection.handle(conn.Broken("gone"), now + conn.LIVED_S)
    assert (connection.deadline() or 0.0) - (now + conn.LIVED_S) <= BASE_S


@pytest.mark.parametrize(
    ("reason", "exit_code"),
    [
        (RejectReason.REVOKED, ExitCode.REVOKED),
        (RejectReason.REPLACED, ExitCode.REPLACED),
        (RejectReason.PROTOCOL, ExitCode.PROTOCOL),
        (RejectReason.UNKNOWN_DEVICE, ExitCode.UNKNOWN_DEVICE),
    ],
)
def test_final_rejection_gives_up_with_its_own_exit_code(
    reason: RejectReason, exit_code: ExitCode
) -> None:
    connection = connected()
    effects = connection.handle(conn.Rejected(reason, "because"), 1.0)
    assert isinstance(effects[-1], conn.GiveUp)
    assert effects[-1].exit_code is exit_code
    assert effects[-1].message.startswith("because: ")
    assert connection.deadline() is None


def test_hub_that_shuts_down_is_retried_within_a_second() -> None:
    connection = connected()
    connection.handle(conn.Rejected(RejectReason.SHUTTING_DOWN, ""), 50.0)
    assert 50.0 < (connection.deadline() or 0.0) <= 51.0


def test_leaving_says_goodbye_only_when_connected() -> None:
    assert conn.SendGoodbye("bye", 7) in connected().handle(conn.Leave("bye"), 1.0)
    effects = dialled().handle(conn.Leave("bye"), 1.0)
    assert not any(isinstance(effect, conn.SendGoodbye) for effect in effects)


def random_event(rng: random.Random) -> conn.Event:
    return rng.choice(
        [
            conn.Tick(),
            conn.Tick(),
            conn.Tick(),
            conn.Welcomed(rng.randrange(3), rng.choice([0.0, 0.1, 2.0]), rng.choice([0.0, 10.0])),
            conn.Acknowledged(rng.choice([0.0, 1.0, 1e9]), rng.choice([0.0, 5.0])),
            conn.Broken("x"),
            conn.Reachable(),
            conn.Rejected(rng.choice([*RejectReason, RejectReason.OTHER]), "x"),
            *([conn.Leave("x")] if rng.random() < 0.02 else []),
        ]
    )


@pytest.mark.parametrize("seed", range(200))
def test_any_sequence_of_events_keeps_the_state_consistent(seed: int) -> None:
    rng = random.Random(seed)
    connection = conn.Connection(Backoff(rng), now=0.0)
    now, open_stream = 0.0, False
    for _ in range(200):
        now += rng.choice([0.0, 0.01, 0.5, 3.0, 20.0])
        for effect in connection.handle(random_event(rng), now):
            if isinstance(effect, conn.Dial):
                assert not open_stream
                open_stream = True
            elif isinstance(effect, conn.Drop):
                open_stream = False
            elif isinstance(effect, (conn.SendHeartbeat, conn.SendGoodbye, conn.Announce)):
                assert open_stream
        connection.check_integrity()
        assert open_stream == (connection.phase in (conn.Phase.DIALLING, conn.Phase.CONNECTED))
