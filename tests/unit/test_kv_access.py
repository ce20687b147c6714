from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from agent.config import PrefixCacheConfig
from agent.kv.access import SharedAccess, load_shared_access
from agent.kv.sharing import SharedTierConfig
from agent.llama.shared_access import TermsWatch, read_terms
from orchestrator.identity.cache_users import CacheLogin, cache_login
from orchestrator.setup import cache_access
from shoal.home import Home
from shoal.kv_sharing import SharePolicy

if TYPE_CHECKING:
    from agent.kv.prefix_cache import PrefixCache

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


def test_terms_of_an_older_file_are_the_usual_ones(tmp_path: Path) -> None:
    file = tmp_path / "kv-shared.json"
    told = replace(ACCESS, share_policy=SharePolicy.NEVER, write_bytes_per_s=5)
    file.write_bytes(told.to_json())
    assert load_shared_access(file) == told
    older = {
        k: v for k, v in json.loads(told.to_json()).items() if not k.startswith(("sha", "wri"))
    }
    file.write_text(json.dumps(older))
    assert load_shared_access(file) == ACCESS


def test_hub_and_device_see_by_one_digest_that_anything_changed() -> None:
    login = cache_login(b"k" * 32, "redis://h:1", "1")

    def kept(told: CacheLogin) -> SharedAccess:
        return SharedAccess(
            told.url,
            told.user,
            told.password,
            told.fleet_secret,
            told.share_policy,
            told.write_bytes_per_s,
        )

    others = (
        cache_login(b"k" * 32, "redis://h:1", "2"),
        cache_login(b"k" * 32, "redis://h:2", "1"),
        cache_login(b"x" * 32, "redis://h:1", "1"),
        replace(login, share_policy=SharePolicy.ON_SECOND_USE),
        replace(login, write_bytes_per_s=1),
    )
    assert kept(login).digest == login.digest
    assert len({login.digest, *(kept(other).digest for other in others)}) == 1 + len(others)


class Cache:
    """Notes the shared tiers that it is given."""

    def __init__(self) -> None:
        self.given: list[tuple[SharedTierConfig | None, bytes]] = []

    def use_shared(self, config: SharedTierConfig | None, fleet_secret: bytes) -> None:
        self.given.append((config, fleet_secret))


def test_an_engine_takes_over_what_its_file_says_later_but_not_over_its_owner(
    tmp_path: Path,
) -> None:
    file, now_s, cache = tmp_path / "kv-shared.json", [0.0], Cache()
    config = PrefixCacheConfig(shared_access=file, share_bytes_per_s=0)
    watch = TermsWatch(config, read_terms(config), lambda: now_s[0])

    def look() -> tuple[SharedTierConfig | None, bytes] | None:
        now_s[0] += 60
        watch(cast("PrefixCache", cache))
        return cache.given.pop() if cache.given else None

    assert look() is None
    told = replace(ACCESS, share_policy=SharePolicy.ON_SECOND_USE, write_bytes_per_s=7)
    file.write_bytes(told.to_json())
    watch(cast("PrefixCache", cache))
    assert cache.given == []  # looked a moment ago
    expected = SharedTierConfig(ACCESS.login_url, SharePolicy.ON_SECOND_USE, write_bytes_per_s=0)
    assert look() == (expected, ACCESS.fleet_secret)
    file.write_bytes(told.to_json() + b" ")
    assert look() is None  # written again, says the same
    file.write_bytes(b"damaged")
    with capture_logs() as logs:
        assert look() == (None, b"")
    assert [each["event"] for each in logs] == ["kv_shared_tier_off", "kv_shared_tier_replaced"]
    file.write_bytes(replace(told, url="http://elsewhere").to_json())
    assert look() is None
    file.write_bytes(replace(told, url="rediss://h:1").to_json())
    found = look()
    assert found is not None
    assert found[0] is not None
    assert found[0].ca_file == str(tmp_path / "ca.crt")
    file.unlink()
    assert look() == (None, b"")


def test_owners_policy_is_above_the_fleets(tmp_path: Path) -> None:
    file = tmp_path / "kv-shared.json"
    file.write_bytes(replace(ACCESS, write_bytes_per_s=7).to_json())
    own = PrefixCacheConfig(shared_access=file, share_policy=SharePolicy.NEVER)
    tier = read_terms(own).tier
    assert tier is not None
    assert (tier.policy, tier.write_bytes_per_s) == (SharePolicy.NEVER, 7)


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


def test_hubs_reach_the_fleets_own_cache_from_inside(tmp_path: Path) -> None:
    home = Home(tmp_path)
    own = cache_access("rediss://hub.example:7000", home, "hub.example", "10.0.0.5")
    assert own is not None
    assert own.device_url == "rediss://hub.example:7000"
    assert own.admin_url == "rediss://10.0.0.5:7000"
    assert own.ca_file == home.ca_dir / "ca.crt"
    elsewhere = cache_access("rediss://cache.example:1", home, "hub.example", "10.0.0.5")
    assert elsewhere is not None
    assert elsewhere.admin_url == elsewhere.device_url
