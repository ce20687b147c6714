"""A device behind NAT, and a network that goes and comes, where namespaces can be made."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.harness import net_trial, netlab

WHY_NOT = netlab.missing()


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.net_trial"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "possible")
def test_device_behind_nat_joins_and_a_partition_leaves_no_trace(seen: dict[str, Any]) -> None:
    assert not seen["can_be_dialled"]
    # The lease, and some time of a busy machine.
    assert seen["noticed_s"] < net_trial.LEASE_S + 5
    # Two heartbeats, and some time of a busy machine; pauses alone would take up to 15 s.
    assert seen["back_s"] < 2 * net_trial.HEARTBEAT_S + 2
    assert len(seen["engines_before"]) == 1
    assert seen["engines_after"] == seen["engines_before"]
    assert seen["devices"] == 1
