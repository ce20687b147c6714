"""The agent's settings: flags first, then environment, then defaults."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.hardware.report import DEVICE_CLASSES
from agent.session.errors import AgentError, ExitCode
from agent.session.local_address import LocalAddress, add_local_api, local_address
from shoal.home import default_home
from shoal.kv_budget import ELEMENT_BYTES
from shoal.kv_sharing import share_policy_flag, write_limit_flag

# In the agent's home; written with the identity, read by engines.
SHARED_KV_FILE = "kv-shared.json"


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Settings of one agent; None leaves a choice to the engine."""

    home: Path
    name: str
    models: tuple[str, ...]
    join_url: str = ""
    token: str = field(default="", repr=False)
    device_class: str = ""
    # Servers on this device that serve models in our engine's place: files, or URL#MODEL.
    companions: tuple[str, ...] = ()
    # What the device draws under load, W, by its owner; None: estimated.
    tdp_w: float | None = None
    slots: int | None = None
    context_tokens: int | None = None
    threads: int | None = None
    # A key of shoal.kv_budget.ELEMENT_BYTES; None: as calibrated, else f16.
    kv_type: str | None = None
    engine_arguments: tuple[str, ...] = ()
    grace_s: float = 3.0
    join_patience_s: float = 20.0
    # Empty: the environment's, else info.
    log_level: str = ""
    # Where OpenAI's API is served on this device; None: it is not.
    local_api: LocalAddress | None = None
    local_key: bool = True
    # Engine arguments: which KV blocks are shared, and how fast; empty: the engine's defaults.
    kv_sharing: tuple[str, ...] = ()
    # Measure in the first idle minute what suits models of which nothing is known.
    calibrates: bool = True
    # Where install.sh put this agent, as its control script says; None: it did not.
    prefix: Path | None = None

    @property
    def models_dir(self) -> Path:
        """Where fetched models are kept."""
        return self.home / "models"

    @property
    def kv_dir(self) -> Path:
        """Where engines keep KV blocks, a folder a model."""
        return self.home / "kv"

    @property
    def kv_shared_file(self) -> Path:
        """The way to the fleet's shared KV blocks (0600); absent: they are not shared."""
        return self.home / SHARED_KV_FILE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agent.app",
        description="Serve this device's models in a fleet. The first start needs --join and "
        "--token; later ones find the identity in --home.",
    )
    add = parser.add_argument
    add("--home", type=Path, help="state directory of this agent (SHOAL_AGENT_HOME)")
    add("--join", metavar="URL", help="the fleet's gateway (SHOAL_JOIN)")
    add("--token", help="join token; SHOAL_TOKEN keeps it out of the process list")
    add("--token-file", type=Path, help="file with the join token")
    add("--name", help="name of the device in the fleet (SHOAL_AGENT_NAME; default: hostname)")
    add("--model", action="append", metavar="FILE|NAME", help="GGUF file or name; repeatable")
    add(
        "--companion",
        action="append",
        metavar="FILE|URL#MODEL",
        help="a server on this device that serves a model (docs/companion.md); repeatable",
    )
    add("--class", dest="device_class", choices=DEVICE_CLASSES, help="declare a device class")
    add("--tdp-w", type=_watts, help="power under load in W, for devices without a meter")
    add("--slots", type=_positive, help="sequences that run at once, per model")
    add("--context", type=_positive, help="context in tokens, per sequence")
    add("--threads", type=_positive, help="CPU threads of an engine")
    add(
        "--kv-type",
        choices=("auto", *sorted(ELEMENT_BYTES)),
        default="auto",
        help="elements of the KV cache; auto: f16, or q8_0 where a calibration found texts as "
        "independent of the batch and f16 gives too little context or is clearly slower (default)",
    )
    add("--engine-arg", action="append", default=[], help="passed on to each engine; repeatable")
    add("--grace-s", type=float, default=3.0, help="time for running requests at the end")
    add("--join-patience-s", type=float, default=20.0, help="how long to retry joining")
    add(
        "--kv-share",
        type=share_policy_flag,
        metavar="POLICY",
        help="KV blocks that go to the "
        "fleet's shared cache: always, on_second_use or never (default: always)",
    )
    add(
        "--kv-write-limit",
        type=write_limit_flag,
        metavar="MB/S",
        help="at most so fast, for each model; 0: no limit (default)",
    )
    add_local_api(parser)
    add(
        "--calibrate",
        choices=("auto", "never"),
        help="auto: measure, in the first idle minute, which variant, threads and slots suit a "
        "model of which nothing is known (SHOAL_CALIBRATE; default: auto)",
    )
    add(
        "--log-level",
        default="",
        choices=("debug", "info", "warning", "error"),
        help="default: SHOAL_LOG_LEVEL, else info",
    )
    return parser


def read_config(arguments: Sequence[str]) -> AgentConfig:
    """Settings from flags and environment; SystemExit(2) or AgentError when they are wrong."""
    given = _parser().parse_args(arguments)
    name = given.name or os.environ.get("SHOAL_AGENT_NAME") or socket.gethostname()
    environment_home = os.environ.get("SHOAL_AGENT_HOME")
    home = given.home or (Path(environment_home) if environment_home else None)
    return AgentConfig(
        home=(home or default_home().agent_dir(name)).expanduser().absolute(),
        name=name,
        models=tuple(given.model or ()),
        join_url=given.join or os.environ.get("SHOAL_JOIN", ""),
        token=_token(given),
        device_class=given.device_class or "",
        companions=tuple(given.companion or ()),
        tdp_w=given.tdp_w,
        slots=given.slots,
        context_tokens=given.context,
        threads=given.threads,
        kv_type=None if given.kv_type == "auto" else given.kv_type,
        engine_arguments=tuple(given.engine_arg),
        grace_s=given.grace_s,
        join_patience_s=given.join_patience_s,
        log_level=given.log_level,
        local_api=local_address(
            given.local_api or os.environ.get("SHOAL_LOCAL_API", ""), key=not given.no_local_key
        ),
        local_key=not given.no_local_key,
        kv_sharing=_kv_sharing(given),
        calibrates=(given.calibrate or os.environ.get("SHOAL_CALIBRATE", "auto")) != "never",
        prefix=Path(prefix) if (prefix := os.environ.get("SHOAL_AGENT_PREFIX")) else None,
    )


def _kv_sharing(given: argparse.Namespace) -> tuple[str, ...]:
    arguments = () if given.kv_share is None else ("--kv-share", str(given.kv_share))
    if given.kv_write_limit is None:
        return arguments
    return (*arguments, "--kv-write-limit", f"{given.kv_write_limit / 1e6:.6f}")


def _token(given: argparse.Namespace) -> str:
    if given.token_file is None:
        return given.token or os.environ.get("SHOAL_TOKEN", "")
    path: Path = given.token_file
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise AgentError(ExitCode.USAGE, f"--token-file {path}: {error}") from error


def _watts(text: str) -> float:
    value = float(text)
    if not 0 < value < 100_000:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
