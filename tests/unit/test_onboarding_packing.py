"""What devices fetch: the wheel, the list, the script with its hashes."""

import hashlib
import platform
import re
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from shoal import __version__
from shoal.onboarding import sources
from shoal.onboarding.depot import (
    Depot,
    DepotFile,
    foreign_engine_wheels,
    load_depot,
    make_depot,
)
from shoal.onboarding.lines import install_line, verified_line
from shoal.onboarding.script import filled_script
from shoal.onboarding.wheel import build_wheel

URL = "http://192.0.2.7:8421"


@pytest.fixture(scope="module")
def wheel() -> zipfile.ZipFile:
    return zipfile.ZipFile(BytesIO(build_wheel().content))


def test_wheel_holds_the_device_and_nothing_of_the_orchestrator(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    tops = {name.split("/")[0] for name in names}
    stem = f"shoal_agent-{__version__}"
    assert tops == {"agent", "shoal", f"{stem}.data", f"{stem}.dist-info"}
    assert f"{stem}.data/data/share/shoal/deploy/build_engine.py" in names
    assert f"{stem}.data/scripts/shoal-agent" in names
    assert "shoal/v1/device_pb2.py" in names
    assert not [name for name in names if "__pycache__" in name]


def test_wheel_asks_for_no_ray_and_for_what_the_agent_needs(wheel: zipfile.ZipFile) -> None:
    text = wheel.read(f"shoal_agent-{__version__}.dist-info/METADATA").decode()
    wanted = re.findall(r"^Requires-Dist: ([A-Za-z0-9._-]+)", text, re.MULTILINE)
    assert {"grpcio", "numpy", "jinja2", "diskcache"} <= set(wanted)
    assert not {"ray", "fastapi", "pytest", "llama-cpp-python"} & set(wanted)


def test_same_source_gives_the_same_wheel() -> None:
    assert build_wheel() == build_wheel()


def test_wheel_records_every_file(wheel: zipfile.ZipFile) -> None:
    record = wheel.read(f"shoal_agent-{__version__}.dist-info/RECORD").decode().splitlines()
    assert [line.rsplit(",", 2)[0] for line in record] == wheel.namelist()


def test_requirements_of_an_installed_package_are_the_devices() -> None:
    listed = ["grpcio>=1", "numpy<3,>=2; extra == 'agent'", "ray[serve]; extra == 'orchestrator'"]
    assert sources._of_device(listed) == ["grpcio>=1", "numpy<3,>=2"]


@pytest.fixture(scope="module")
def depot(tmp_path_factory: pytest.TempPathFactory) -> tuple[Depot, Path]:
    folder = tmp_path_factory.mktemp("depot")
    return make_depot(folder, URL), folder


def test_depot_is_read_back_as_it_was_made(depot: tuple[Depot, Path]) -> None:
    made, folder = depot
    assert load_depot(folder) == made
    for file in made.files:
        assert hashlib.sha256(file.path.read_bytes()).hexdigest() == file.sha256


def test_script_pins_the_list_and_the_list_pins_the_files(depot: tuple[Depot, Path]) -> None:
    made, _ = depot
    assert f"INDEX_SHA256='{hashlib.sha256(made.sums).hexdigest()}'".encode() in made.script
    assert f"GATEWAY_URL='{URL}'".encode() in made.script
    assert not re.search(rb"@[A-Z0-9_]+@", made.script)


def test_builds_for_other_machines_are_served_and_this_ones_only_by_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for machine in ("riscv64", platform.machine()):
        entry = tmp_path / "shoal" / "wheels" / f"0.3.36-{machine}-0123456789abcdef"
        entry.mkdir(parents=True)
        (entry / "engine.whl").touch()
    assert [name for name, _ in foreign_engine_wheels()] == [
        "engine/0.3.36-riscv64-0123456789abcdef/engine.whl"
    ]


def test_depot_gives_only_what_it_lists(depot: tuple[Depot, Path]) -> None:
    made, _ = depot
    assert made.find("constraints.txt") is not None
    assert made.find("../ca/ca.key") is None
    assert made.find("depot.json") is None


def test_url_that_would_end_the_quotes_is_refused() -> None:
    with pytest.raises(ValueError, match="install script"):
        filled_script("http://x/'; rm -rf ~; '", "0" * 64)


def test_names_with_spaces_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(ValueError, match="spaces"):
        DepotFile.of("models/my model.gguf", tmp_path / "f")


def test_lines_are_what_the_documents_say() -> None:
    assert install_line(URL, "T") == f"curl -fsSL {URL}/shoal/v1/install.sh | sh -s -- --token T"
    assert "sha256sum -c -" in verified_line(URL, "T", "ab" * 32)
