"""One real fleet for the whole end-to-end session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.fleet import Fleet
from tests.harness.models import smollm2_file


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    running = Fleet("--model", str(smollm2_file()), "--slots", "8", "--context", "2048")
    yield running
    running.close()
