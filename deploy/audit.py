"""Known vulnerabilities of the pinned releases, by pip-audit in an environment of its own.

    python deploy/audit.py                  # fails when nobody could be asked
    python deploy/audit.py --if-possible    # then says NOT AUDITED and passes

A service counts as answering only when it knows of a release that is vulnerable for
certain: an index that leaves that part out would else make every audit pass. Strict: a
pin that could not be looked up fails, it is not passed over.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

PINS = Path(__file__).parents[1] / "constraints.txt"
TOOL = "pip-audit>=2.10,<3"
# CVE-2018-18074, known to both services. Findings go to stdout, faults to stderr.
CONTROL = "requests==2.19.0\n"
# The package index itself, then the database it takes its knowledge from.
SERVICES = ("pypi", "osv")
LIMIT_S = 300
NOT_AUDITED = 3


def main() -> int:
    """Command line; 0 when no pin is known to be vulnerable."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--if-possible", action="store_true", help="pass when nobody answers")
    options = parser.parse_args()
    try:
        audit = _tool()
        service = next((name for name in SERVICES if _answers(audit, name)), "")
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"audit: {error}", file=sys.stderr)
        service = ""
    if not service:
        print(
            "audit: NOT AUDITED: no vulnerability service answers from here "
            f"(asked: {', '.join(SERVICES)})",
            file=sys.stderr,
        )
        return 0 if options.if_possible else NOT_AUDITED
    done = _ask(audit, service, PINS)
    print(done.stdout + done.stderr, end="", file=sys.stderr if done.returncode else sys.stdout)
    return done.returncode


def _tool() -> Path:
    """pip-audit, installed once; it brings thirty packages that nothing else needs."""
    environment = Path(sys.prefix) / "audit"
    tool = environment / "bin" / "pip-audit"
    if not tool.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        python = str(environment / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "-qq", TOOL], check=True)
    return tool


def _answers(audit: Path, service: str) -> bool:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as control:
        control.write(CONTROL)
        control.flush()
        done = _ask(audit, service, Path(control.name))
    return done.returncode == 1 and "requests" in done.stdout


def _ask(audit: Path, service: str, pins: Path) -> subprocess.CompletedProcess[str]:
    command = [
        *(str(audit), "--strict", "--no-deps", "--disable-pip", "--progress-spinner", "off"),
        *("--vulnerability-service", service, "-r", str(pins)),
    ]
    return subprocess.run(command, check=False, timeout=LIMIT_S, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
