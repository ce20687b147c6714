"""The tier of a request: every branch of the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.dispatch.config import CloudConfigError, load_cloud_endpoints
from orchestrator.dispatch.plan import ModelPresence, plan_tiers
from shoal.errors import Reason, ShoalError


def presence(**changes: object) -> ModelPresence:
    values = {"num_parameters": 10**9, "on_edge": True, "ready_devices": 1, "in_cloud": True}
    return ModelPresence(**(values | changes))  # type: ignore[arg-type]


def tiers(model: ModelPresence, privacy: str = "", *, pinned: bool = False) -> tuple[str, ...]:
    return plan_tiers("m", model, privacy=privacy, pinned_to_device=pinned).tiers


@pytest.mark.parametrize(
    ("model", "privacy", "pinned", "expected"),
    [
        (presence(num_parameters=6_999_999_999), "", False, ("edge", "cloud")),
        (presence(num_parameters=7_000_000_000), "", False, ("cloud", "edge")),
        (presence(num_parameters=7_000_000_000), "any", False, ("cloud", "edge")),
        (presence(num_parameters=7_000_000_000), "local_preferred", False, ("edge", "cloud")),
        (presence(num_parameters=7_000_000_000), "local_only", False, ("edge",)),
        (presence(num_parameters=7_000_000_000), "", True, ("edge",)),
        (presence(num_parameters=7_000_000_000, in_cloud=False), "", False, ("edge",)),
        (presence(ready_devices=0), "", False, ("cloud", "edge")),
        (presence(ready_devices=0), "local_only", False, ("edge",)),
        (presence(on_edge=False, ready_devices=0), "", False, ("cloud",)),
        (presence(on_edge=False, ready_devices=0), "local_preferred", False, ("cloud",)),
        (presence(on_edge=False, ready_devices=0, in_cloud=False), "", False, ("edge",)),
        (presence(on_edge=False, in_cloud=False), "local_only", False, ("edge",)),
    ],
)
def test_tiers(model: ModelPresence, privacy: str, pinned: bool, expected: tuple[str, ...]) -> None:
    assert tiers(model, privacy, pinned=pinned) == expected


def test_local_only_request_for_a_cloud_model_is_forbidden() -> None:
    with pytest.raises(ShoalError) as caught:
        tiers(presence(on_edge=False, ready_devices=0), "local_only")
    assert caught.value.reason is Reason.PERMISSION_DENIED
    assert caught.value.http_status == 403
    assert caught.value.param == "shoal.privacy"


TOML = """
[[endpoint]]
url = "https://api.example/v1/"
key_file = "key"
read_timeout_s = 30
[[endpoint.model]]
name = "big"
upstream = "vendor/big-70b"
num_parameters = 70_000_000_000
"""


def test_cloud_config_reads_keys_beside_it_and_hides_them(tmp_path: Path) -> None:
    (tmp_path / "cloud.toml").write_text(TOML)
    (tmp_path / "key").write_text("sk-secret\n")
    endpoint = load_cloud_endpoints(tmp_path / "cloud.toml")[0]
    assert endpoint.name == "api.example"
    assert endpoint.url == "https://api.example/v1"
    assert endpoint.key == "sk-secret"
    assert endpoint.read_timeout_s == 30
    assert endpoint.models[0].upstream == "vendor/big-70b"
    assert "sk-secret" not in repr(endpoint)


def test_cloud_config_key_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cloud.json"
    file.write_text(
        '{"endpoint": [{"url": "http://h/v1", "key_env": "CLOUD_KEY",'
        ' "model": [{"name": "b", "num_parameters": 8}]}]}'
    )
    monkeypatch.setenv("CLOUD_KEY", "k")
    assert load_cloud_endpoints(file)[0].key == "k"
    monkeypatch.delenv("CLOUD_KEY")
    with pytest.raises(CloudConfigError, match="CLOUD_KEY"):
        load_cloud_endpoints(file)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "endpoint"),
        ("x = ", "cannot be read"),
        ('[[endpoint]]\nurl = "ftp://x"', "http"),
        ('[[endpoint]]\nurl = "http://x/v1"', "endpoint.model"),
        ('[[endpoint]]\nurl = "http://x/v1"\n[[endpoint.model]]\nname = "m"', "num_parameters"),
        (TOML, "key_file"),
        (TOML.replace('key_file = "key"', "").replace("30", "-1"), "read_timeout_s"),
    ],
)
def test_cloud_config_that_cannot_be_used_says_why(
    tmp_path: Path, text: str, complaint: str
) -> None:
    file = tmp_path / "cloud.toml"
    file.write_text(text)
    with pytest.raises(CloudConfigError, match=complaint):
        load_cloud_endpoints(file)
