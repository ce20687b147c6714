"""The hub's orders to change versions, carried out; an extension of the device's stream."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import structlog

from agent.rpc.device import Device
from agent.upgrade.folder import UpgradeFolder
from agent.upgrade.installing import Order, UpgradeError, fetch, install
from shoal.tasks import cancelled
from shoal.v1 import device_pb2 as pb

log = structlog.get_logger()

_NOT_INSTALLED = (
    "this agent was not installed by install.sh: it is upgraded with the orchestrator that "
    "started it, or by whoever started it"
)


class Upgrades:
    """`prefix`: where install.sh put the agent; None: it did not."""

    def __init__(self, device: Device, home: Path, prefix: Path | None, gateway_url: str) -> None:
        self._device = device
        self._folder = UpgradeFolder(home)
        self._prefix = prefix
        self._gateway_url = gateway_url
        self._running: asyncio.Task[None] | None = None
        self._order: pb.Upgrade | None = None  # that is carried out
        # The agent is to be started again when it has ended.
        self.restarts = False

    def greet(self, hello: pb.Hello) -> None:
        """Say which release runs, and what became of the last order."""
        state = self._folder.state()
        hello.installation.CopyFrom(
            pb.Installation(
                release=Path(sys.prefix).resolve().name if self._prefix else "",
                trial=state.trial,
                failed_release=state.failed,
                failure=state.failure,
            )
        )

    def welcomed(self, protocol: int) -> None:
        """Nothing: the Hello said it all."""

    def take(self, frame: pb.HubFrame) -> bool:
        """Orders and verdicts."""
        match frame.WhichOneof("frame"):
            case "upgrade":
                self._begin(frame.upgrade)
            case "upgrade_verdict":
                self._judge(frame.upgrade_verdict)
            case _:
                return False
        return True

    async def stop(self) -> None:
        """End what is being installed."""
        if self._running is not None:
            await cancelled([self._running])

    def _begin(self, order: pb.Upgrade) -> None:
        if self._prefix is None:
            self._tell(order.version, "failed", _NOT_INSTALLED)
        elif self._running is not None and not self._running.done():
            if order == self._order:
                return  # the hub does not know whether its first one came
            self._tell(order.version, "failed", "another upgrade is being installed")
        elif self._folder.state().trial:
            self._tell(order.version, "failed", "a version is on trial")
        else:
            self._order = order
            self._running = asyncio.create_task(self._upgrade(order, self._prefix))

    async def _upgrade(self, order: pb.Upgrade, prefix: Path) -> None:
        wanted = Order(order.version, tuple(order.files))
        try:
            self._tell(order.version, "fetching")
            files = await fetch(wanted, self._gateway_url, self._folder)
            self._tell(order.version, "installing")
            release = await install(wanted, files, self._folder, prefix)
            self._folder.switch(release, max(10, order.ready_within_s))
        except (UpgradeError, OSError) as error:
            log.warning("upgrade_failed", version=order.version, why=str(error))
            self._tell(order.version, "failed", str(error))
            return
        self._tell(order.version, "draining")
        self.restarts = True
        self._device.leave(f"upgrading to {order.version}", grace_s=order.drain_within_s or None)

    def _judge(self, verdict: pb.UpgradeVerdict) -> None:
        if verdict.release != self._folder.state().trial:
            return
        if verdict.keep:
            self._folder.keep()
            self._tell(verdict.release, "kept")
            return
        log.warning("upgrade_refused", release=verdict.release, why=verdict.reason)
        self._folder.refuse(verdict.reason or "the hub did not confirm it")
        self.restarts = True
        self._device.leave("going back to the version before", grace_s=0.0)

    def _tell(self, version: str, phase: str, failure: str = "") -> None:
        log.info("upgrade", version=version, phase=phase, failure=failure)
        progress = pb.UpgradeProgress(version=version, phase=phase, failure=failure[:1000])
        self._device.send(pb.DeviceFrame(upgrade_progress=progress))
