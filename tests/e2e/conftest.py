"""One real fleet for all end-to-end tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.fleet import Fleet
from tests.harness.models import smollm2_file


@pytest.fixture(scope="package")
def fleet() -> Iterator[Fleet]:
    running = Fleet("--model", str(smollm2_file()), "--slots", "8", "--context", "2048")
    yield running
    running.close()
