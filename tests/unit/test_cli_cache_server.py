from pathlib import Path

from shoal.cli.cache_server import choose_cache_port, last_cache_port, prepare_acl
from shoal.home import Home


def a_home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.make_private_dirs()
    return home


def test_the_port_is_kept_over_restarts(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    assert last_cache_port(home) is None
    port = choose_cache_port(home)
    assert choose_cache_port(home) == last_cache_port(home) == port


def test_devices_survive_in_the_acl_and_nobody_else_does(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    path = prepare_acl(home)
    password = home.cache_admin_file.read_text()
    device = "user device-1 on #00 resetchannels ~shoal:kv:* -@all +get"
    path.write_text(path.read_text() + device + "\nuser default on nopass ~* +@all\n")
    lines = prepare_acl(home).read_text().splitlines()
    assert lines[0] == "user default off"
    assert lines[1].startswith("user shoal-admin on #")
    assert lines[2:] == [device]
    assert home.cache_admin_file.read_text() == password
    assert password not in path.read_text()


def test_secrets_are_for_this_user_only(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    acl = prepare_acl(home)
    modes = [path.stat().st_mode & 0o777 for path in (acl, home.cache_admin_file)]
    assert modes == [0o600, 0o600]
