"""`shoal up` and `shoal down`."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli.commands import reported
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.fleet_file import FleetRecord, FleetState, read_record
from shoal.cli.fleet_lock import FleetLock
from shoal.cli.launches import UpOptions
from shoal.cli.options import finite
from shoal.cli.output import JsonFlag, answer, print_json
from shoal.cli.processes import marked_processes, wait_for_end
from shoal.cli.progress import follow_progress
from shoal.cli.progress_view import ProgressView
from shoal.cli.stopping import SUPERVISOR_GRACE_S, StopReport, stop_fleet
from shoal.gguf import GgufError
from shoal.gguf_facts import scan
from shoal.home import Home, child_environment, default_home
from shoal.kv_sharing import SharePolicy, write_limit_flag
from shoal.named_files import named_file
from shoal.ports import another_port, bind_failure

DEFAULT_PORT = 8421
DEFAULT_MODEL = "smollm2-135m-instruct"
# By then the supervisor has imported its modules and taken its lock, on any machine.
SPAWN_LIMIT_S = 15.0


@reported
def up(  # noqa: PLR0913, PLR0917 - a command's options are its parameters
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once it is up.")] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help=f"Port of the gateway [{DEFAULT_PORT}].")
    ] = None,
    agents: Annotated[
        int | None, typer.Option(min=0, max=64, help="Agents on this machine [1].")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help=f"GGUF file or name of a model; repeatable [{DEFAULT_MODEL}]."),
    ] = None,
    cloud_config: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Cloud backends.")
    ] = None,
    cloud_model: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True, dir_okay=False, help="GGUF file to host in the cloud tier; repeatable."
        ),
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Sequences at once, a model.")] = None,
    context: Annotated[int | None, typer.Option(min=256, help="Tokens, a sequence.")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; devices of other machines need one.")
    ] = "127.0.0.1",
    advertise: Annotated[str, typer.Option(help="Host that devices dial [--host].")] = "",
    hubs: Annotated[int, typer.Option(min=1, max=16, help="Hubs, which share the devices.")] = 1,
    kv_share: Annotated[
        SharePolicy, typer.Option(help="KV blocks that devices share, if their owners set nothing.")
    ] = SharePolicy.ALWAYS,
    kv_write_limit: Annotated[
        float,
        typer.Option(
            callback=finite, min=0, metavar="MB/S", help="For what a device shares; 0: no limit."
        ),
    ] = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """Bring a fleet up on this machine: Redis, orchestrator and agents."""
    models = tuple(_model_argument(each) for each in model or [])
    options = UpOptions(
        port=port or DEFAULT_PORT,
        num_agents=1 if agents is None else agents,
        models=models or (DEFAULT_MODEL,),
        cloud_config=str(cloud_config.absolute()) if cloud_config else "",
        cloud_models=tuple(str(file.absolute()) for file in cloud_model or []),
        slots=slots,
        context_tokens=context,
        host=host,
        advertise=_advertised(host, advertise),
        num_hubs=hubs,
        kv_share=kv_share.value,
        kv_write_limit=_write_limit(kv_write_limit),
    )
    home = default_home()
    home.make_private_dirs()
    home.make_sockets_dir()
    view = ProgressView(quiet=as_json)
    already = _is_running(home, view)
    if already:
        _refuse_other_options(read_record(home), (port, agents, models or None))
        view.note("a fleet is already running here; `shoal down` would end it")
    else:
        _clear_leftovers(home, view)
        _require_free_port(options.port)
        _start_supervisor(home, options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        url = _url_of_running(home) if already else None
        url = url or _wait_until_up(home, view)
        _say_up(home, url, already=already, as_json=as_json)
        if not detach and not already:
            _stay(home, view)
    except KeyboardInterrupt:
        # What another `shoal up` started is not ours to end.
        if not already:
            _stop(home, view)
        raise


@reported
def down(as_json: JsonFlag = False) -> None:
    """End exactly what `shoal up` started, even if its supervisor was killed."""
    home = default_home()
    view = ProgressView(quiet=as_json)
    report = _stop(home, view)
    if as_json:
        print_json({"was_running": report.was_running, "orphans": report.num_orphans})
    else:
        answer.print("The fleet is down." if report.was_running else "Nothing was running.")


def _advertised(host: str, advertise: str) -> str:
    """What devices dial; CliError when all that is known is "every address"."""
    if host in ("0.0.0.0", "::") and not advertise:  # noqa: S104 # nosec B104
        raise CliError(
            ExitCode.USAGE,
            f"--host {host} is no address that a device could dial.",
            "Name one with --advertise, or listen on one address only.",
        )
    return advertise or host


def _write_limit(megabytes_per_s: float) -> float:
    try:
        write_limit_flag(str(megabytes_per_s))
    except argparse.ArgumentTypeError as error:
        raise CliError(ExitCode.USAGE, f"--kv-write-limit: {error}") from error
    return megabytes_per_s


def _model_argument(model: str) -> str:
    """A file becomes an absolute path, since the agent runs elsewhere; a name stays.

    CliError at once, not when Ray is up, for a file that no engine could load.
    """
    if (path := named_file(model)) is not None:
        try:
            scan(path)
        except GgufError as error:
            raise CliError(
                ExitCode.USAGE,
                f"--model: {path} cannot be served: {error}",
                "Is the download complete? Compare its size and SHA-256 with the source's.",
            ) from error
        except OSError as error:
            message = f"--model: {path} cannot be read: {error.strerror}"
            raise CliError(ExitCode.USAGE, message) from error
        return str(path)
    if "/" in model or model.endswith(".gguf"):
        raise CliError(ExitCode.USAGE, f"--model: there is no file {model[:200]}")
    return model


def _refuse_other_options(record: FleetRecord | None, asked: tuple[object, ...]) -> None:
    """CliError when what was `asked` for (None: not said) is not what runs."""
    if record is None:
        return
    running = (record.port, record.num_agents, record.models)
    if any(want not in (None, have) for want, have in zip(asked, running, strict=True)):
        raise CliError(
            ExitCode.ALREADY_RUNNING,
            f"A fleet is already running here with other options: port {record.port}, "
            f"{record.num_agents} agents, models {', '.join(record.models)}.",
            "End it with `shoal down` first, or use another SHOAL_HOME for a second fleet.",
        )


def _clear_leftovers(home: Home, view: ProgressView) -> None:
    """End what a killed supervisor left behind; it would hold ports and identities."""
    if marked_processes(home):
        _stop(home, view)


def _stop(home: Home, view: ProgressView) -> StopReport:
    report = stop_fleet(home, view.note)
    if report.survivors:
        raise CliError(
            ExitCode.STOP_INCOMPLETE,
            f"These processes did not end: {', '.join(map(str, report.survivors))}.",
            "Look at what holds them (for example a hung disk), then run `shoal down` again.",
        )
    return report


def _require_free_port(port: int) -> None:
    if (failure := bind_failure(port)) is not None:
        raise CliError(
            ExitCode.PORT_IN_USE,
            f"Port {port} cannot be used: {failure}.",
            f"Choose another one, for example `shoal up --port {another_port(port)}`; "
            f"`ss -ltnp 'sport = :{port}'` shows who holds this one.",
        )


def _start_supervisor(home: Home, options: UpOptions) -> None:
    fleet_id = uuid.uuid4().hex[:12]
    (home.run_dir / "progress.jsonl").unlink(missing_ok=True)
    with (home.logs_dir / "supervisor.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "shoal.cli.supervisor", fleet_id, options.to_json()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=child_environment(home, fleet_id),
        )


def _wait_until_up(home: Home, view: ProgressView) -> str:
    """Show each stage; the gateway's URL, or CliError with what failed."""
    ended = False
    spawned_by = time.monotonic() + SPAWN_LIMIT_S
    try:
        for stage in follow_progress(home):
            if stage is None:
                if ended:
                    break
                # Its last words may have come between our look and its end: look once more.
                late = time.monotonic() > spawned_by
                ended = late and not FleetLock(home).is_held_elsewhere()
                continue
            view.show(stage)
            if stage["stage"] == "ready":
                return str(stage["gateway_url"])
            if stage["stage"] == "failed":
                remedy = f"`shoal doctor` looks for causes; the logs are in {home.logs_dir}."
                raise CliError(ExitCode.START_FAILED, stage["message"], remedy)
    finally:
        view.close()
    message = "The supervisor ended before the fleet was up."
    raise CliError(
        ExitCode.START_FAILED,
        message,
        f"See {home.logs_dir / 'supervisor.log'}, then `shoal down`.",
    )


def _say_up(home: Home, url: str, *, already: bool, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = {"gateway_url": url, "already_running": already}
        print_json(document | {"home": str(home.path)})
    else:
        answer.print(f"The fleet is up: [bold]{url}[/bold]")


def _stay(home: Home, view: ProgressView) -> None:
    """Foreground: wait until the fleet ends; CliError when it ended by itself."""
    record = read_record(home)
    supervisor = record.supervisor.find() if record else None
    view.note("press Ctrl-C to end it")
    if supervisor:
        supervisor.wait()
    record = read_record(home)
    if record and record.error:
        raise CliError(ExitCode.FAILED, record.error, f"The logs are in {home.logs_dir}.")


def _is_running(home: Home, view: ProgressView) -> bool:
    """Whether a fleet is up or coming up here; waits for one that is going down."""
    lock = FleetLock(home)
    record = read_record(home)
    if record and record.state is FleetState.STOPPING and lock.is_held_elsewhere():
        view.note("waiting for the last fleet to end")
        supervisor = record.supervisor.find()
        wait_for_end([supervisor] if supervisor else [], SUPERVISOR_GRACE_S)
    return lock.is_held_elsewhere()


def _url_of_running(home: Home) -> str | None:
    record = read_record(home)
    return record.gateway_url if record and record.state is FleetState.RUNNING else None
