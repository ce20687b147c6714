"""`shoal doctor`: look for what keeps a fleet from working, and say the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from shoal.cli import checks
from shoal.cli.checks import Finding, Verdict
from shoal.cli.checks_devices import check_devices, check_swapping
from shoal.cli.commands import reported
from shoal.cli.exit_codes import ExitCode
from shoal.cli.output import JsonFlag, answer, print_json
from shoal.cli.up import DEFAULT_PORT
from shoal.home import default_home

_MARKS = {
    Verdict.OK: "[green]ok[/green]  ",
    Verdict.NOTE: "[yellow]note[/yellow]",
    Verdict.FAIL: "[red]FAIL[/red]",
}


@reported
def doctor(
    port: Annotated[int, typer.Option(help="Port to look at.")] = DEFAULT_PORT,
    as_json: JsonFlag = False,
) -> None:
    """Check environment, engine, Redis, Ray, port, memory, devices; exit code 11 on failures."""
    findings = []
    for finding in _all_findings(port):
        findings.append(finding)
        if not as_json:
            _print(finding)
    failed = [finding for finding in findings if finding.verdict is Verdict.FAIL]
    if as_json:
        print_json({"ok": not failed, "findings": [asdict(finding) for finding in findings]})
    else:
        answer.print(f"\n{len(failed)} of {len(findings)} checks failed.")
    if failed:
        raise typer.Exit(int(ExitCode.DOCTOR_FOUND))


def _all_findings(port: int) -> Iterator[Finding]:
    home = default_home()
    looks: list[Callable[[], list[Finding]]] = [
        checks.check_environment,
        lambda: checks.check_home(home),
        lambda: checks.check_machine(home),
        check_swapping,
        lambda: checks.check_port(home, port),
        lambda: checks.check_redis(home),
        lambda: check_devices(home),
        checks.check_ray,
        checks.check_engine,
    ]
    for look in looks:
        yield from look()


def _print(finding: Finding) -> None:
    answer.print(
        f"{_MARKS[finding.verdict]} {finding.name}: {escape(finding.detail)}", soft_wrap=True
    )
    if finding.remedy and finding.verdict is not Verdict.OK:
        answer.print(f"     remedy: {escape(finding.remedy)}", soft_wrap=True)
