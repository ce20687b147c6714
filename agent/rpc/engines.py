"""The engines of this device by model name, and models that come and go."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent.models.shelf import Shelf
from agent.rpc.engine_host import EngineHost, EngineListener
from agent.rpc.engine_process import EngineSpec
from agent.rpc.hub_files import HubFiles
from shoal.gguf import GgufError
from shoal.gguf_facts import scan
from shoal.model_fetch import DiskFullError, DownloadError, download, file_sha256
from shoal.tasks import cancelled
from shoal.v1 import device_pb2, engine_pb2
from shoal.v1 import inference_pb2 as pb

log = structlog.get_logger()

# While a file is fetched.
_TELL_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Companion:
    """A model that another server serves; `argument` is what `--companion` said."""

    name: str
    argument: str
    patient: bool


@dataclass(frozen=True, slots=True)
class Calibrated:
    """How a calibration found that a file is served best; None: the engine's default."""

    threads: int | None
    slots: int
    kv_type: str | None


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How engines are started; `defaults` gives slots, context and threads."""

    sockets_dir: Path
    models_dir: Path
    defaults: EngineSpec
    command: Callable[[EngineSpec], Sequence[str]]
    # By file; what `defaults` states wins.
    calibrated: Mapping[Path, Calibrated] = field(default_factory=dict)


class Engines:
    """Starts, finds and ends engines; the only place that changes the set of models."""

    def __init__(
        self, settings: EngineSettings, listener: EngineListener, hub_files: HubFiles
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._hub_files = hub_files
        self._shelf = Shelf(settings.models_dir)
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
            best = settings.calibrated[file]
            spec = dataclasses.replace(
                spec,
                threads=spec.threads or best.threads,
                slots=spec.slots or best.slots,
                kv_type=spec.kv_type or best.kv_type,
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
            same = host.spec.sha256 == order.sha256.lower()
            if same or not host.spec.sha256:  # what the owner started is not replaced
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
        await cancelled(self._fetching.values())
        await asyncio.gather(*(host.stop() for host in self._hosts.values()), *self._closing)

    async def _fetch_and_start(self, order: device_pb2.LoadModel) -> None:
        name, kind = order.name, engine_pb2.FAILURE_KIND_FETCH
        self._note(order, engine_pb2.ModelReport(state=engine_pb2.MODEL_STATE_LOADING))
        try:
            if not _is_plain(order):
                raise DownloadError("LoadModel needs a name, an http(s) URL or none, and a SHA-256")
            file = await self._fetch(order)
            kind = engine_pb2.FAILURE_KIND_FILE
            await asyncio.to_thread(scan, file)
        except (DownloadError, GgufError, OSError) as error:
            if isinstance(error, DiskFullError):
                kind = engine_pb2.FAILURE_KIND_DISK
            log.warning("model_not_fetched", model=name, why=str(error))
            failed = engine_pb2.MODEL_STATE_FAILED
            self._note(
                order,
                engine_pb2.ModelReport(state=failed, failure=str(error), failure_kind=kind),
            )
            return
        self._not_fetched.pop(name, None)
        old = self._hosts.pop(name, None)
        if old is not None:
            await old.stop()
        defaults = self._settings.defaults
        self._start(
            dataclasses.replace(
                defaults,
                name=name,
                file=file,
                sha256=order.sha256.lower(),
                slots=order.slots or defaults.slots,
                context_tokens=order.context_tokens or defaults.context_tokens,
            )
        )

    async def _fetch(self, order: device_pb2.LoadModel) -> Path:
        """The ordered file, fetched unless it is here. Raises DownloadError, OSError."""
        target = self._shelf.place(order.sha256.lower(), order.file)
        if await asyncio.to_thread(file_sha256, target) != order.sha256.lower():
            in_use = [host.spec.file for host in self._hosts.values()]
            removed = await asyncio.to_thread(
                self._shelf.make_room, order.size_bytes, [*in_use, target]
            )
            if removed:
                log.info("model_files_removed", num=len(removed), why="room for another")
            told_s = 0.0

            def tell(done_bytes: int, total_bytes: int) -> None:
                nonlocal told_s
                now_s = asyncio.get_running_loop().time()
                if now_s - told_s >= _TELL_EVERY_S:
                    told_s = now_s
                    loading = engine_pb2.MODEL_STATE_LOADING
                    self._note(
                        order,
                        engine_pb2.ModelReport(
                            state=loading, fetched_bytes=done_bytes, file_bytes=total_bytes
                        ),
                    )

            if order.url:
                await download(order.url, order.sha256, target, tell)
            else:
                await self._hub_files.fetch(order, target, tell)
        await asyncio.to_thread(self._shelf.touch, target)
        return target

    def _note(self, order: device_pb2.LoadModel, report: engine_pb2.ModelReport) -> None:
        report.name = order.name
        report.file = order.file
        report.file_sha256 = order.sha256.lower()
        report.deployed = True
        self._not_fetched[order.name] = report
        self._listener.engine_changed(report)


def _is_plain(order: device_pb2.LoadModel) -> bool:
    """True when the order is complete; the hash also becomes part of a file name."""
    sha256 = order.sha256.lower()
    hexadecimal = len(sha256) == 64 and all(digit in "0123456789abcdef" for digit in sha256)
    plain_url = not order.url or order.url.startswith(("http://", "https://"))
    return bool(order.name) and hexadecimal and plain_url
