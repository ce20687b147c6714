"""One real fleet for all end-to-end tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.fleet import Fleet
from tests.harness.models import smollm2_file


@pytest.fixture(scope="package")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    # Its name comes after the devices' model, which is what `shoal chat` then takes.
    config = tmp_path_factory.mktemp("cloud") / "cloud.toml"
    config.write_text(
        f'[[hosted]]\nfile = "{smollm2_file()}"\nname = "whale"\n'
        "num_parameters = 70_000_000_000\nslots = 2\ncontext_tokens = 512\nidle_s = 1\n"
    )
    options = ("--slots", "8", "--context", "2048", "--cloud-config", str(config))
    running = Fleet("--model", str(smollm2_file()), *options)
    yield running
    running.close()
