"""What a device finds out before anything is changed on it."""

import base64
import hashlib
from pathlib import Path

import pytest

from shoal.onboarding.preflight import (
    Machine,
    authority_problem,
    clock_problem,
    closed_folder,
    fleet_problems,
    machine_problems,
    membership_problem,
)
from tests.harness.ports import free_port

GOOD = Machine(available_bytes=2_000_000_000, free_bytes=50_000_000_000, compiler=True)
DER = b"any bytes stand for a certificate here"
PEM = f"-----BEGIN CERTIFICATE-----\n{base64.b64encode(DER).decode()}\n-----END CERTIFICATE-----\n"
PIN = hashlib.sha256(DER).hexdigest()


def test_good_machine_has_no_problem() -> None:
    assert machine_problems(GOOD, compiles=True, model_bytes=100) == []


def test_unknown_memory_is_no_problem() -> None:
    machine = Machine(None, GOOD.free_bytes, compiler=True)
    assert machine_problems(machine, compiles=False, model_bytes=0) == []


def test_each_shortage_is_named_with_a_remedy() -> None:
    machine = Machine(available_bytes=100_000_000, free_bytes=1_000_000_000, compiler=False)
    found = machine_problems(machine, compiles=True, model_bytes=0)
    assert [problem.text.split()[0] for problem in found] == ["100", "1000", "no"]
    assert "apt install gcc g++" in found[2].remedy


def test_compiler_and_its_disk_are_asked_for_only_when_something_is_compiled() -> None:
    machine = Machine(GOOD.available_bytes, 1_000_000_000, compiler=False)
    assert machine_problems(machine, compiles=False, model_bytes=0) == []


def test_large_model_counts() -> None:
    assert machine_problems(GOOD, compiles=False, model_bytes=60_000_000_000)


def test_authority_of_the_token_passes() -> None:
    assert authority_problem(PEM, f"shoal-join.id.secret.{PIN}") is None
    assert authority_problem(PEM, "") is None


def test_other_authority_is_found_before_anything_is_installed() -> None:
    problem = authority_problem(PEM, f"shoal-join.id.secret.{'0' * 64}")
    assert problem is not None
    assert "in between" in problem.remedy


def test_member_of_another_fleet_is_told_so_and_how_to_leave_it() -> None:
    prefix = Path("/opt/shoal-agent")
    assert membership_problem(PEM, "", prefix) is None
    assert membership_problem(PEM, PEM, prefix) is None
    problem = membership_problem(PEM, PEM.replace("YW55", "YW56"), prefix)
    assert problem is not None
    assert PIN[:16] in problem.text
    assert "/opt/shoal-agent/shoal-agent uninstall" in problem.remedy


@pytest.mark.parametrize("token", ["shoal-join.id.secret", "sk-shoal-abc", PIN])
def test_what_is_no_token_is_said_to_be_none(token: str) -> None:
    problem = authority_problem(PEM, token)
    assert problem is not None
    assert "not a join token" in problem.text


def test_unreachable_gateway_is_one_problem_with_its_address() -> None:
    (problem,) = fleet_problems(f"http://127.0.0.1:{free_port()}", "", Path("/opt/a"))
    assert "127.0.0.1" in problem.text


def test_url_of_a_file_is_not_opened() -> None:
    (problem,) = fleet_problems("file:///etc", "", Path("/opt/a"))
    assert "http://" in problem.text


def test_folder_that_another_user_cannot_enter_is_named(tmp_path: Path) -> None:
    python = tmp_path / "private" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (tmp_path / "private").chmod(0o700)
    found = closed_folder(python)
    # The temporary directory of the tests may be closed itself.
    assert found in (*tmp_path.parents, tmp_path, tmp_path / "private")
    assert closed_folder(Path("/usr/bin/python3")) is None


NOON = "Wed, 02 Dec 2026 12:00:00 GMT"
NOON_UNIX_S = 1_796_212_800.0


@pytest.mark.parametrize("skew_s", [-290, 0, 290])
def test_five_minutes_of_clock_skew_are_no_problem(skew_s: float) -> None:
    assert clock_problem(NOON, NOON_UNIX_S + skew_s) is None


@pytest.mark.parametrize(("skew_s", "words"), [(-86_400, "1440 minutes behind"), (600, "ahead")])
def test_clock_that_would_spoil_certificates_is_named(skew_s: float, words: str) -> None:
    problem = clock_problem(NOON, NOON_UNIX_S + skew_s)
    assert problem is not None
    assert words in problem.text
    assert "set the clock" in problem.remedy


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_gateway_that_tells_no_time_is_no_problem(date: str | None) -> None:
    assert clock_problem(date, NOON_UNIX_S) is None
