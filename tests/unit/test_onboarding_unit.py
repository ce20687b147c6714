"""The systemd unit that install.sh writes: what it denies the agent, and what it must not deny."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from shoal.onboarding import script

SOURCE = Path(script.__file__).with_name("install.sh").read_text(encoding="utf-8")
LAST_LINE = 'main "$@" </dev/null\n'


class Installer:
    """The script with everything settled, at the point where it writes the unit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = "/usr"
        self.cwd = folder
        self.companions: list[str] = []
        self.models = ["/opt/shoal-agent/models/a.gguf"]
        self.prefix = "/opt/shoal-agent"
        self._program("systemctl", "true")
        self._program("loginctl", "true")

    def unit(self, service: str) -> list[str]:
        """The lines of the unit."""
        self._program("target/bin/python", f"echo {self.base}")
        (self.folder / "companion_arguments").write_text("".join(f"{c}\n" for c in self.companions))
        (self.folder / "model_arguments").write_text("\n".join([*self.models, ""]))
        file = self.folder / "shoal-agent.service"
        settled = f"""
            prefix='{self.prefix}' target='{self.folder}/target' work='{self.folder}' name=hall-3
            service={service} unit=shoal-agent unit_file='{file}' account=nobody
            write_unit
        """
        assert SOURCE.endswith(LAST_LINE)
        done = subprocess.run(
            ["sh", "-s"], input=SOURCE.removesuffix(LAST_LINE) + settled, text=True,
            capture_output=True, check=False, timeout=60, cwd=self.cwd,
            env={"PATH": f"{self.folder}:{os.environ['PATH']}"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return file.read_text().splitlines()

    def _program(self, name: str, does: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{does}\n")
        path.chmod(0o755)


@pytest.fixture
def installer(tmp_path: Path) -> Installer:
    return Installer(tmp_path)


def test_service_may_write_its_state_only_and_has_no_capability(installer: Installer) -> None:
    unit = installer.unit("system")
    for line in (
        "User=nobody", "NoNewPrivileges=yes", "CapabilityBoundingSet=", "AmbientCapabilities=",
        "ProtectSystem=strict", 'ReadWritePaths="/opt/shoal-agent/state"', "ProtectHome=yes",
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
        "SystemCallFilter=@system-service", "SystemCallArchitectures=native",
        "LockPersonality=yes", "RestrictNamespaces=yes", "RestrictSUIDSGID=yes",
        "ProtectKernelModules=yes", "ProtectKernelTunables=yes", "ProtectKernelLogs=yes",
        "ProtectControlGroups=yes", "PrivateTmp=yes", "UMask=0077",
    ):  # fmt: skip
        assert line in unit


@pytest.mark.parametrize("service", ["system", "user"])
def test_what_takes_away_gpus_meters_or_compilers_is_left_alone(
    installer: Installer, service: str
) -> None:
    names = {line.partition("=")[0] for line in installer.unit(service)}
    # ProtectClock implies DeviceAllow, after which no other device node can be opened.
    assert not names & {
        "PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "ProcSubset",
        "MemoryDenyWriteExecute", "PrivateNetwork", "IPAddressDeny",
    }  # fmt: skip


def test_users_own_service_asks_for_nothing_that_needs_rights(installer: Installer) -> None:
    unit = installer.unit("user")
    assert "SystemCallFilter=@system-service" in unit
    for name in ("User=", "CapabilityBoundingSet=", "Protect", "PrivateTmp=", "ReadWritePaths="):
        assert not [line for line in unit if line.startswith(name)]


def test_home_stays_readable_where_the_agent_uses_anything_in_it(installer: Installer) -> None:
    assert "ProtectHome=yes" in installer.unit("system")
    installer.models.append("/home/ann/models/b.gguf")
    assert "ProtectHome=read-only" in installer.unit("system")
    installer.models.pop()
    installer.companions = ["http://127.0.0.1:11434/v1#llama3.2:1b", "/home/ann/rkllm.toml"]
    assert "ProtectHome=read-only" in installer.unit("system")
    installer.companions.pop()
    assert "ProtectHome=yes" in installer.unit("system")
    installer.prefix = "/home/ann/agent"
    unit = installer.unit("system")
    assert "ProtectHome=read-only" in unit
    assert 'ReadWritePaths="/home/ann/agent/state"' in unit
    installer.prefix, installer.base = "/opt/shoal-agent", "/root/.pyenv/versions/3.11.7"
    assert "ProtectHome=read-only" in installer.unit("system")


def test_model_by_name_lies_nowhere_even_when_the_script_is_run_in_a_home(
    installer: Installer,
) -> None:
    installer.models, installer.cwd = ["smollm2-135m-instruct"], Path("/home")
    assert "ProtectHome=yes" in installer.unit("system")


def test_model_behind_a_link_counts_as_where_it_lies(installer: Installer, tmp_path: Path) -> None:
    # Not /root: only root may look behind a link there.
    (tmp_path / "models").symlink_to("/home")
    installer.models = [str(tmp_path / "models" / "a.gguf")]
    assert "ProtectHome=read-only" in installer.unit("system")


def test_systemd_calls_the_exposure_low(installer: Installer) -> None:
    analyser = shutil.which("systemd-analyze")
    if analyser is None:
        pytest.skip("no systemd-analyze here")
    installer.unit("system")
    unit = installer.folder / "shoal-agent.service"
    options = ["security", "--offline=true", "--no-pager", "--threshold=25"]
    done = subprocess.run(
        [analyser, *options, str(unit)], text=True, capture_output=True, check=False, timeout=60
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze judges no files")
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
