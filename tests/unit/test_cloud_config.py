"""The cloud's configuration file: what it can say, and what it is refused for."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.dispatch.config import CloudConfigError, load_cloud_config

TOML = """
currency = "EUR"
[retry]
max_tries = 2
[privacy]
detector = "presidio"
[[endpoint]]
url = "https://api.example/v1/"
key_file = "key"
priority = 3
[endpoint.timeouts]
first_byte_s = 30
[endpoint.breaker]
failures_to_open = 5
[[endpoint.model]]
name = "big"
upstream = "vendor/big-70b"
num_parameters = 70_000_000_000
input_per_million = 0.15
output_per_million = 0.6
weight = 2.5
"""


def test_everything_is_read_and_keys_are_hidden(tmp_path: Path) -> None:
    (tmp_path / "cloud.toml").write_text(TOML)
    (tmp_path / "key").write_text("sk-secret\n")
    config = load_cloud_config(tmp_path / "cloud.toml")
    endpoint = config.endpoints[0]
    assert (endpoint.name, endpoint.url) == ("api.example", "https://api.example/v1")
    assert endpoint.key == "sk-secret"
    assert "sk-secret" not in repr(config)
    assert (endpoint.timeouts.first_byte_s, endpoint.timeouts.connect_s) == (30, 5)
    assert endpoint.breaker.failures_to_open == 5
    assert isinstance(endpoint.breaker.failures_to_open, int)
    assert endpoint.priority == 3
    model = endpoint.models[0]
    assert (model.upstream, model.weight, model.priority) == ("vendor/big-70b", 2.5, None)
    assert model.price is not None
    assert model.price.input_per_million == Decimal("0.15")
    assert (config.currency, config.retry.max_tries, config.detector.kind) == (
        "EUR",
        2,
        "presidio",
    )


def test_key_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cloud.json"
    file.write_text(
        '{"endpoint": [{"url": "http://h/v1", "key_env": "CLOUD_KEY",'
        ' "model": [{"name": "b", "num_parameters": 8}]}]}'
    )
    monkeypatch.setenv("CLOUD_KEY", "k")
    assert load_cloud_config(file).endpoints[0].key == "k"
    monkeypatch.delenv("CLOUD_KEY")
    with pytest.raises(CloudConfigError, match="CLOUD_KEY"):
        load_cloud_config(file)


PLAIN = TOML.replace('key_file = "key"\n', "")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "endpoint"),
        ("x = ", "cannot be read"),
        ("endpoint = [7]", "must be a table"),
        ('[[endpoint]]\nurl = "ftp://x"', "http"),
        ('[[endpoint]]\nurl = "http://u:p@x/v1"', "credentials"),
        ('[[endpoint]]\nurl = "http://x/v1"', "endpoint.model"),
        ('[[endpoint]]\nurl = "http://x/v1"\n[[endpoint.model]]\nname = "m"', "num_parameters"),
        (TOML, "key_file"),
        (PLAIN.replace("= 30", "= -1"), "first_byte_s"),
        (PLAIN.replace("first_byte_s", "first_bite_s"), "first_bite_s"),
        (PLAIN.replace("priority = 3", "priorities = 3"), "priorities"),
        (PLAIN.replace("output_per_million = 0.6", ""), "output_per_million"),
        (PLAIN.replace('"EUR"', '"euro"'), "currency"),
        (PLAIN.replace('"presidio"', '"magic"'), "magic"),
        (PLAIN.replace("[privacy]", '[privacy]\nraises_to = "any"'), "raises_to"),
        (PLAIN.replace('detector = "presidio"', 'raises_to = "local_only"'), "'detector' is miss"),
        (PLAIN.replace('detector = "presidio"', ""), "'detector' is missing"),
        (PLAIN.replace("[privacy]", "[privacy]\nmin_score = 3"), "'min_score' .* from 0 to 1"),
        (PLAIN.replace("[privacy]", "[privacy]\nmin_score = nan"), "'min_score'"),
        (PLAIN.replace("[privacy]", "[privacy]\nmin_score = true"), "'min_score'"),
        (PLAIN.replace("[privacy]", "[privacy]\ntimeout_s = inf"), "'timeout_s'"),
        (PLAIN.replace("[privacy]", "[privacy]\nentities = [7]"), "'entities'"),
        (PLAIN + PLAIN[PLAIN.index("[[endpoint]]") :], "same name"),
    ],
)
def test_file_that_cannot_be_used_says_why(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "cloud.toml"
    file.write_text(text)
    with pytest.raises(CloudConfigError, match=complaint):
        load_cloud_config(file)
