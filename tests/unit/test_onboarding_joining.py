"""When install.sh calls a device joined, and what it does when the fleet refuses its identity."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shoal.onboarding import script

SOURCE = Path(script.__file__).with_name("install.sh").read_text(encoding="utf-8")
LAST_LINE = 'main "$@" </dev/null\n'
# Stands for the control script: `start` does what the next line of `ends` says: a hub's welcome,
# or the exit code that the agent ended with.
CONTROL = """#!/bin/sh
state=$(dirname "$0")/state
echo "$1 $(ls "$state" | grep -c -e identity -e key -e crt) $(cat "$state/token" 2>/dev/null)" \
    >>"$state/../asked"
case $1 in
start)
    end=$(head -n 1 "$state/../ends")
    sed -i 1d "$state/../ends"
    touch "$state/identity.json"
    rm -f "$state/../runs"
    if [ "$end" = welcome ]; then touch "$state/connected" "$state/../runs"
    else echo "$end" >"$state/exit-code"; fi
    ;;
status) test -f "$state/../runs" ;;
stop) rm -f "$state/../runs" ;;
esac
"""


class Device:
    """A member whose control script is ours."""

    def __init__(self, folder: Path) -> None:
        self.prefix = folder / "device"
        self.state = self.prefix / "state"
        self.state.mkdir(parents=True)
        self.work = folder / "work"
        self.work.mkdir()
        for name in ("identity.json", "device.key", "device.crt", "ca.crt", "connected"):
            (self.state / name).touch()
        control = self.prefix / "shoal-agent"
        control.write_text(CONTROL)
        control.chmod(0o755)
        self._expired = self.prefix / "versions" / "a" / "bin" / "python"
        self._expired.parent.mkdir(parents=True)
        self.expires(False)

    def expires(self, expired: bool) -> None:
        """What the environment's Python says of the certificate."""
        self._expired.write_text(f"#!/bin/sh\nexit {int(not expired)}\n")
        self._expired.chmod(0o755)

    def start(self, *ends: str, token: str = "", member: str = "yes") -> tuple[int, str]:
        """Run `start_agent`; exit status and what was said."""
        (self.prefix / "ends").write_text("".join(f"{end}\n" for end in ends))
        settled = f"""
            prefix='{self.prefix}' work='{self.work}' target="$prefix/versions/a" release=a
            start=1 step_name='' changed=yes previous=versions/a member={member} token='{token}'
            account=$(id -un)
            start_agent
        """
        done = subprocess.run(
            ["sh", "-s"], input=SOURCE.removesuffix(LAST_LINE) + settled, text=True,
            capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def starts(self) -> list[str]:
        """At each start: how many files of an identity there were, and the token."""
        asked = (self.prefix / "asked").read_text().splitlines()
        return [line.removeprefix("start ") for line in asked if line.startswith("start")]


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_member_whom_the_hub_welcomes_has_joined(device: Device) -> None:
    assert device.start("welcome", token="unused")[0] == 0
    assert device.starts() == ["4 "]


@pytest.mark.parametrize("code", ["17", "20", "23"])
def test_member_whom_the_fleet_refuses_joins_anew_with_the_token(device: Device, code: str) -> None:
    status, said = device.start(code, "welcome", token="fresh")
    assert status == 0, said
    assert "joining anew" in said
    assert device.starts() == ["4 ", "0 fresh"]
    assert not (device.state / "token").exists()


def test_member_whose_certificate_has_expired_joins_anew_without_being_tried(
    device: Device,
) -> None:
    device.expires(True)
    status, said = device.start("welcome", token="fresh")
    assert status == 0, said
    assert device.starts() == ["0 fresh"]
    assert "has expired" in device.start("welcome")[1]
    assert (device.prefix / "runs").exists()


def test_member_whom_the_fleet_refuses_is_told_how_to_join_anew(device: Device) -> None:
    status, said = device.start("20")
    assert status == 1
    assert "it was removed" in said
    assert "--token TOKEN" in said
    assert (device.state / "identity.json").exists()


def test_agent_that_ended_for_another_reason_keeps_its_identity(device: Device) -> None:
    status, said = device.start("21", token="fresh")
    assert status == 1
    assert "did not join" in said
    assert device.starts() == ["4 "]
    assert (device.state / "device.key").exists()


def test_identity_of_a_new_device_alone_is_no_success(device: Device) -> None:
    status, said = device.start("12", token="used", member="no")
    assert status == 1
    assert "did not join" in said
