"""The engines of this device by model name, and models that come and go."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent.rpc.engine_host import EngineHost, EngineListener
from agent.rpc.engine_process import EngineSpec
from agent.rpc.model_files import DownloadError, download
from shoal.v1 import device_pb2, engine_pb2
from shoal.v1 import inference_pb2 as pb

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Companion:
    """A model that another server serves; `argument` is what `--companion` said."""

    name: str
    argument: str
    patient: bool


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How engines are started; `defaults` gives slots, context and threads."""

    sockets_dir: Path
    models_dir: Path
    defaults: EngineSpec
    command: Callable[[EngineSpec], Sequence[str]]
    # Threads and slots that a calibration chose, by file; what `defaults` states wins.
    calibrated: Mapping[Path, tuple[int | None, int]] = field(default_factory=dict)


class Engines:
    """Starts, finds and ends engines; the only place that changes the set of models."""

    def __init__(self, settings: EngineSettings, listener: EngineListener) -> None:
        self._settings = settings
        self._listener = listener
        self._hosts: dict[str, EngineHost] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._not_fetched: dict[str, engine_pb2.ModelReport] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._num_started = 0

    def start(self, name: str, file: Path) -> None:
        """Serve `file` under `name`; returns at once."""
        settings = self._settings
        spec = dataclasses.replace(settings.defaults, name=name, file=file)
        if file in settings.calibrated:
            threads, slots = settings.calibrated[file]
            spec = dataclasses.replace(
                spec, threads=spec.threads or threads, slots=spec.slots or slots
            )
        self._start(spec)

    def start_companion(self, companion: Companion) -> None:
        """Serve the companion's model; returns at once."""
        self._start(
            dataclasses.replace(
                self._settings.defaults,
                name=companion.name,
                companion=companion.argument,
                patient=companion.patient,
            )
        )

    def _start(self, spec: EngineSpec) -> None:
        self._num_started += 1
        socket = self._settings.sockets_dir / f"engine-{self._num_started}.sock"
        spec = dataclasses.replace(spec, socket=socket)
        host = EngineHost(spec, self._settings.command, self._listener)
        self._hosts[spec.name] = host
        host.start()

    def find(self, name: str) -> EngineHost | None:
        """The engine of a model, in whatever state; None when the model is not here."""
        return self._hosts.get(name)

    def reports(self) -> list[engine_pb2.ModelReport]:
        """All models, those included that are being fetched or could not be."""
        return [*(host.report for host in self._hosts.values()), *self._not_fetched.values()]

    def loads(self) -> list[pb.EngineLoad]:
        """Latest load of each engine that serves."""
        return [load for host in self._hosts.values() if (load := host.load) is not None]

    def pids(self) -> Iterator[int]:
        """Process ids of the children."""
        return (host.pid for host in self._hosts.values() if host.pid is not None)

    def load(self, order: device_pb2.LoadModel) -> None:
        """Fetch a model and serve it; what becomes of it is reported as it happens."""
        host = self._hosts.get(order.name)
        if host is not None and not host.failure:
            self._listener.engine_changed(host.report)
            return
        if order.name in self._fetching:
            return
        task = asyncio.create_task(self._fetch_and_start(order))
        self._fetching[order.name] = task
        task.add_done_callback(lambda _: self._fetching.pop(order.name, None))

    def unload(self, name: str) -> None:
        """End a model's engine and forget the model; its running requests fail."""
        fetching = self._fetching.get(name)
        if fetching is not None:
            fetching.cancel()
        self._not_fetched.pop(name, None)
        host = self._hosts.pop(name, None)
        if host is not None:
            self._listener.engine_lost_requests(name, "the model is being unloaded")
            task = asyncio.create_task(host.stop())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._listener.engine_changed(
            engine_pb2.ModelReport(name=name, state=engine_pb2.MODEL_STATE_UNLOADED)
        )

    async def stop(self) -> None:
        """End all engines and wait for them."""
        for task in tuple(self._fetching.values()):
            task.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)
        await asyncio.gather(*(host.stop() for host in self._hosts.values()), *self._closing)

    async def _fetch_and_start(self, order: device_pb2.LoadModel) -> None:
        name = order.name
        target = self._settings.models_dir / f"{order.sha256[:16].lower()}.gguf"
        self._note(name, engine_pb2.MODEL_STATE_LOADING)
        try:
            if not _is_plain(order):
                raise DownloadError("LoadModel needs a name, an http(s) URL and a SHA-256")
            await download(order.url, order.sha256, target)
        except DownloadError as error:
            log.warning("model_not_fetched", model=name, why=str(error))
            self._note(name, engine_pb2.MODEL_STATE_FAILED, str(error))
            return
        self._not_fetched.pop(name, None)
        old = self._hosts.pop(name, None)
        if old is not None:
            await old.stop()
        self.start(name, target)

    def _note(self, name: str, state: engine_pb2.ModelState, failure: str = "") -> None:
        report = engine_pb2.ModelReport(name=name, state=state, failure=failure)
        self._not_fetched[name] = report
        self._listener.engine_changed(report)


def _is_plain(order: device_pb2.LoadModel) -> bool:
    """True when the order is complete; the hash also becomes part of a file name."""
    sha256 = order.sha256.lower()
    hexadecimal = len(sha256) == 64 and all(digit in "0123456789abcdef" for digit in sha256)
    return bool(order.name) and hexadecimal and order.url.startswith(("http://", "https://"))
