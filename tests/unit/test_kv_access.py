from pathlib import Path

import pytest

from agent.kv.access import SharedAccess, load_shared_access
from orchestrator.identity.cache_users import cache_login
from orchestrator.setup import cache_access
from shoal.home import Home

ACCESS = SharedAccess("redis://127.0.0.1:7000", "device-1", "p@ss:word/", b"s" * 32)


def test_access_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "kv-shared.json"
    assert load_shared_access(path) is None
    path.write_bytes(ACCESS.to_json())
    assert load_shared_access(path) == ACCESS


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"url": 1, "fleet_secret": "zz"}'])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kv-shared.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be used"):
        load_shared_access(path)


def test_credentials_are_quoted_in_the_url_and_hidden_in_logs() -> None:
    assert ACCESS.login_url == "redis://device-1:p%40ss%3Aword%2F@127.0.0.1:7000"
    assert "word" not in repr(ACCESS)
    assert "ssss" not in repr(ACCESS)


def test_each_device_has_its_own_password_and_all_the_same_secret() -> None:
    one, two = (cache_login(b"k" * 32, "redis://h:1", device) for device in ("1", "2"))
    assert one == cache_login(b"k" * 32, "redis://h:1", "1")
    assert one.password != two.password
    assert one.fleet_secret == two.fleet_secret
    assert one.fleet_secret not in (b"k" * 32, bytes.fromhex(one.password))


@pytest.mark.parametrize(
    ("url", "advertised", "shared"),
    [
        ("", "127.0.0.1", False),
        ("redis://127.0.0.1:1", "127.0.0.1", True),
        ("redis://127.0.0.1:1", "10.0.0.5", False),
        ("rediss://cache.example:1", "hub.example", True),
    ],
)
def test_a_cache_on_loopback_is_told_to_local_devices_only(
    tmp_path: Path, url: str, advertised: str, shared: bool
) -> None:
    assert (cache_access(url, Home(tmp_path), advertised) is not None) is shared
