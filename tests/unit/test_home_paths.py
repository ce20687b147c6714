from pathlib import Path

import pytest

from orchestrator.actors.config import HAPROXY_DIR, ray_environment
from orchestrator.actors.ports import FleetPorts
from shoal.home import FLEET_VARIABLE, Home, child_environment, default_home


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_home_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "a"))
    assert default_home().path == tmp_path / "a"


def test_relative_home_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_HOME", "here")
    assert default_home().path == tmp_path / "here"


def test_sockets_of_two_homes_lie_apart() -> None:
    assert Home(Path("/a")).sockets_dir != Home(Path("/b")).sockets_dir


def test_socket_path_stays_short_for_a_long_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    home = Home(Path("/" + "deep/" * 60))
    assert len(str(home.sockets_dir / "engine-0123456789abcdef.sock")) < 107


@pytest.mark.parametrize("temporary", ["/tmp", "/tmp/x", "/run/user/1000/scratch-of-a-session"])
@pytest.mark.parametrize("user", [0, 1000, 4_294_967_294])
def test_haproxys_socket_can_be_bound(
    temporary: str, user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", temporary)
    monkeypatch.setattr("os.getuid", lambda: user)
    folder = Home(Path("/a")).sockets_dir / HAPROXY_DIR
    environment = ray_environment(FleetPorts((), 1, 2, 3, 4, 5, 6), folder, folder, folder)
    socket = Path(environment["RAY_SERVE_HAPROXY_SOCKET_PATH"])
    node_id = "0" * 56
    # HAProxy's own bound: while it binds, the name has a process id and ".tmp" more.
    assert len(str(socket.parent / node_id / socket.name)) <= 97


def test_sockets_dir_is_made_private(tmp_path: Path) -> None:
    directory = Home(tmp_path).make_sockets_dir()
    assert directory.stat().st_mode & 0o777 == 0o700


def test_sockets_dir_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.sockets_dir.mkdir()
    home.sockets_dir.chmod(0o777)
    with pytest.raises(PermissionError, match="not private"):
        home.make_sockets_dir()


def test_sockets_dir_behind_a_link_is_refused(tmp_path: Path) -> None:
    home, elsewhere = Home(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    home.sockets_dir.symlink_to(elsewhere)
    with pytest.raises(PermissionError):
        home.make_sockets_dir()


def test_state_directories_are_private(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.make_private_dirs()
    assert home.path.stat().st_mode & 0o77 == 0
    assert home.run_dir.stat().st_mode & 0o77 == 0


def test_child_is_marked_and_gets_no_api_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_API_KEY", "secret")
    environment = child_environment(Home(tmp_path), "f1")
    assert environment[FLEET_VARIABLE] == "f1"
    assert environment["SHOAL_HOME"] == str(tmp_path)
    assert "SHOAL_API_KEY" not in environment
