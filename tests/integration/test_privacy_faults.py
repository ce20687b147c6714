"""What must stay local stays, under faults everywhere; the long run is in bench/."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_local_mark_is_found_anywhere_after_hundreds_of_requests_under_faults() -> None:
    # A process of its own: all of its logs are searched, whatever other tests configured.
    done = subprocess.run(
        [sys.executable, "-m", "bench.privacy_faults", "--requests", "400", "--seed", "7"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout, done.stderr
    result = json.loads(done.stdout)
    assert set(result["local_marks_found"].values()) == {0}, result
    assert done.returncode == 0
    # The search had something to find, and found what was free to leave.
    assert result["local_marks"] > 150
    assert result["free_marks_in_cloud"] > 20
    assert min(result["searched_bytes"].values()) > 1_000
    assert result["answers"]["200 edge"] > 50
    assert result["answers"]["403"] > 20
    assert "zq" not in done.stderr
