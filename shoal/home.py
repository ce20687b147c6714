"""Where a fleet keeps its state on this machine, and the environment it reads.

The only module of `shoal` that reads the process environment. The variables:
`SHOAL_HOME` (state directory), `SHOAL_URL` (gateway to talk to),
`SHOAL_API_KEY` (key to talk with), `SHOAL_LOG_LEVEL` (debug, info, warning, error).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_dir, user_data_dir

# Every process of a fleet carries its id under this name, so that `shoal down`
# finds what it started even when the processes in between are gone.
FLEET_VARIABLE = "SHOAL_FLEET"
# A socket's path has 107 bytes at most. HAProxy's lies 61 deeper, in a folder named by Ray's
# node id, and is bound under a name that is 10 longer at first.
MOST_SOCKETS_DIR_BYTES = 36


@dataclass(frozen=True, slots=True)
class Home:
    """The state directory of one fleet; two fleets on one machine have two."""

    path: Path

    @property
    def ca_dir(self) -> Path:
        """The fleet's certificate authority: `ca.key` (0600) and `ca.crt`."""
        return self.path / "ca"

    @property
    def hub_dir(self) -> Path:
        """The hub's `tls.key` and `tls.crt`."""
        return self.path / "hub"

    @property
    def gateway_dir(self) -> Path:
        """The gateway's `tls.key` and `tls.crt`."""
        return self.path / "gateway"

    @property
    def cache_tls_dir(self) -> Path:
        """`tls.key` and `tls.crt` of the Redis of shared KV blocks, where other machines use it."""
        return self.path / "cache"

    @property
    def admin_key_file(self) -> Path:
        """API key of the local command line, role admin (0600)."""
        return self.path / "keys" / "admin.key"

    @property
    def default_key_file(self) -> Path:
        """API key for the user's own first requests (0600)."""
        return self.path / "keys" / "default.key"

    @property
    def cache_admin_file(self) -> Path:
        """Password of the administrator of the Redis of shared KV blocks (0600)."""
        return self.path / "keys" / "cache-admin.key"

    @property
    def kv_key_file(self) -> Path:
        """From it devices' cache passwords and the sealing secret are derived (0600)."""
        return self.path / "keys" / "kv.key"

    @property
    def ray_token_file(self) -> Path:
        """What Ray's ports ask of whoever connects (0600)."""
        return self.path / "keys" / "ray.token"

    @property
    def logs_dir(self) -> Path:
        """One log file a process."""
        return self.path / "logs"

    @property
    def run_dir(self) -> Path:
        """What is running now: `up.json`, the supervisor's lock and progress."""
        return self.path / "run"

    @property
    def redis_dir(self) -> Path:
        """The append-only file of the embedded Redis."""
        return self.path / "redis"

    @property
    def models_dir(self) -> Path:
        """Model files that were fetched or made here."""
        return self.path / "models"

    @property
    def depot_dir(self) -> Path:
        """What devices fetch when they are installed: wheel, constraints, script."""
        return self.path / "depot"

    def agent_dir(self, name: str) -> Path:
        """State of the local agent `name`: its key, certificate and identity."""
        return self.path / "agents" / name

    @property
    def sockets_dir(self) -> Path:
        """Directory for Unix sockets, in the temporary directory or, were it too long, in /tmp."""
        digest = hashlib.sha256(str(self.path).encode()).hexdigest()[:8]
        name = f"shoal-{os.getuid()}-{digest}"
        chosen = Path(tempfile.gettempdir()) / name
        fits = len(os.fsencode(chosen)) <= MOST_SOCKETS_DIR_BYTES
        return chosen if fits else Path("/tmp") / name  # noqa: S108 # nosec B108

    def make_sockets_dir(self) -> Path:
        """Create `sockets_dir` with mode 0700, or refuse one that others could write.

        Raises PermissionError when the directory exists and is not ours alone:
        the temporary directory is shared by all users of the machine.
        """
        directory = self.sockets_dir
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
        private = status.st_uid == os.getuid() and status.st_mode & 0o77 == 0
        if directory.is_symlink() or not private:
            raise PermissionError(
                f"{directory} exists and is not private to this user; remove it and start again"
            )
        return directory

    def make_private_dirs(self) -> None:
        """Create the state directory and what the supervisor needs in it, mode 0700."""
        for directory in (self.path, self.logs_dir, self.run_dir, self.redis_dir, self.models_dir):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def default_home() -> Home:
    """The home named by `SHOAL_HOME`, else the user's data directory."""
    chosen = os.environ.get("SHOAL_HOME")
    path = Path(chosen).expanduser() if chosen else Path(user_data_dir("shoal"))
    return Home(path.absolute())


def agent_prefixes() -> list[Path]:
    """Where install.sh puts an agent unless told otherwise: root's place, then this user's."""
    data = os.environ.get("XDG_DATA_HOME")
    own = Path(data) if data else Path.home() / ".local" / "share"
    return [Path("/opt/shoal-agent"), own / "shoal-agent"]


def cache_dir() -> Path:
    """The user's cache directory for shoal (honours `XDG_CACHE_HOME`)."""
    return Path(user_cache_dir("shoal"))


def gateway_url_from_environment() -> str | None:
    """`SHOAL_URL`, or None."""
    return os.environ.get("SHOAL_URL") or None


def api_key_from_environment() -> str | None:
    """`SHOAL_API_KEY`, or None."""
    return os.environ.get("SHOAL_API_KEY") or None


def model_hub_from_environment() -> str:
    """`HF_ENDPOINT`, as Hugging Face's own tools read it, else their public hub."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def log_level_from_environment() -> str:
    """`SHOAL_LOG_LEVEL`; empty when it is not set."""
    return os.environ.get("SHOAL_LOG_LEVEL", "")


def environment_with(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment and `variables`; the API key is not handed on."""
    environment = dict(os.environ)
    environment.pop("SHOAL_API_KEY", None)
    return environment | dict(variables)


def child_environment(home: Home, fleet_id: str) -> dict[str, str]:
    """This process's environment, marked with the fleet, for a process that we start."""
    marks = {
        FLEET_VARIABLE: fleet_id,
        "SHOAL_HOME": str(home.path),
        "PYTHONUNBUFFERED": "1",
    }
    return environment_with(marks)
