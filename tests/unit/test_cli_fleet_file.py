from pathlib import Path

from shoal.cli.fleet_file import (
    Child,
    FleetRecord,
    FleetState,
    read_record,
    record_file,
    write_record,
)
from shoal.cli.fleet_lock import FleetLock
from shoal.cli.processes import ProcessId
from shoal.home import Home


def a_record() -> FleetRecord:
    return FleetRecord(
        fleet_id="f",
        supervisor=ProcessId(1, 2.5),
        state=FleetState.RUNNING,
        port=8421,
        num_agents=1,
        models=("m",),
        started_unix_ms=3,
        gateway_url="http://127.0.0.1:8421",
        children=(Child("redis", ProcessId(4, 5.5), "redis.log"),),
    )


def a_home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.make_private_dirs()
    return home


def test_record_survives_the_round_trip(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    write_record(home, a_record())
    assert read_record(home) == a_record()


def test_no_record_without_a_fleet(tmp_path: Path) -> None:
    assert read_record(Home(tmp_path)) is None


def test_damaged_record_counts_as_none(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    for text in ("", "{", "[]", '{"fleet_id": 1}'):
        record_file(home).write_text(text)
        assert read_record(home) is None


def test_restarted_child_replaces_its_earlier_self() -> None:
    again = Child("redis", ProcessId(6, 7.5), "redis.log")
    assert a_record().with_child(again).children == (again,)


def test_lock_is_held_by_one_and_freed_on_release(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    first, second = FleetLock(home), FleetLock(home)
    assert first.acquire()
    assert second.is_held_elsewhere()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()
