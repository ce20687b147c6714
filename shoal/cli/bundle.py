"""`shoal bundle create`: a device's installation for a site without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.commands import reported
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.output import JsonFlag, answer, bytes_text, notes, print_json
from shoal.onboarding.bundle import BundleError, create_bundle
from shoal.onboarding.sources import SourcesMissingError

bundle_app = typer.Typer(help="Devices without a network.", no_args_is_help=True)


@bundle_app.command("create")
@reported
def create(
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="The tar.")],
    model: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="GGUF file to include; repeatable."),
    ] = None,
    url: Annotated[str, typer.Option(help="The fleet's gateway; else given at the device.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Pack all that a device like this machine needs; it then reaches only the fleet."""
    target = output.expanduser().absolute()
    try:
        made = create_bundle(target, tuple(model or ()), url.rstrip("/"))
    except (BundleError, SourcesMissingError, ValueError, OSError) as error:
        raise CliError(ExitCode.FAILED, f"The bundle was not made: {error}") from error
    size_bytes = target.stat().st_size
    if as_json:
        print_json(
            {
                "path": str(made.path),
                "size_bytes": size_bytes,
                "sha256": made.sha256,
                "script_sha256": made.script_sha256,
                "files": [file.name for file in made.files],
            }
        )
        return
    answer.print(f"{made.path}: {bytes_text(size_bytes)}, {len(made.files)} files", markup=False)
    answer.print(f"SHA-256 {made.sha256}", markup=False, soft_wrap=True)
    notes.print("[dim]On the device, with a token of the fleet:[/dim]")
    name = target.name
    notes.print(
        f"echo '{made.sha256}  {name}' | sha256sum -c - && tar -xf {name} install.sh && "
        f"sh install.sh --bundle {name} --url URL --token TOKEN",
        markup=False,
        soft_wrap=True,
    )
