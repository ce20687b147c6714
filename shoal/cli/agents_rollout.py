"""One batch of devices from one version to another: order, wait, probe, judge."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shoal.cli.client import GatewayClient
from shoal.cli.exit_codes import CliError, ExitCode

_POLL_S = 0.5
# Installing is the device's own time: pip, an index, maybe a compiler.
_INSTALL_LIMIT_S = 3_600.0
# For the device's own watchdog to have acted, and the agent before to be back.
_BACK_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What to upgrade to, and the times in s."""

    release: dict[str, Any]
    ready_within_s: int
    drain_within_s: int


def select(devices: list[dict[str, Any]], selector: str) -> list[dict[str, Any]]:
    """The devices that fit every term of the selector; CliError for one that is none."""
    fields = {"class": "class", "version": "agent_version", "state": "state"}
    chosen = [device for device in devices if device["state"] not in ("LEFT", "REVOKED")]
    for term in selector.split(","):
        key, _, value = term.strip().partition("=")
        if key == "all" and not value:
            continue
        if key == "name":
            chosen = [each for each in chosen if fnmatch.fnmatch(each["name"], value)]
        elif key in fields:
            chosen = [each for each in chosen if each[fields[key]] == value]
        else:
            raise CliError(
                ExitCode.USAGE,
                f"--selector {selector}: {term!r} is no term.",
                "all, name=GLOB, class=CLASS, version=VERSION, state=STATE; commas between.",
            )
    return chosen


def batch_size(text: str, num_devices: int) -> int:
    """Devices at once, at least one; CliError for what is neither a number nor a share."""
    share = text.removesuffix("%")
    if not share.isdecimal() or not 0 < int(share) <= (100 if text.endswith("%") else 10**6):
        raise CliError(ExitCode.USAGE, f"--batch {text}: give a number of devices, or 10%.")
    return max(1, num_devices * int(share) // 100) if text.endswith("%") else int(share)


@dataclass(slots=True)
class _Device:
    id: str
    name: str
    models: list[str]
    deadline: float


class Rollout:
    """Drives batches through the admin API; a device that nobody confirms goes back by itself."""

    def __init__(
        self,
        admin: GatewayClient,
        user: GatewayClient,
        terms: Terms,
        monotonic: Callable[[], float],
    ) -> None:
        self._admin = admin
        self._user = user
        self._terms = terms
        self._monotonic = monotonic

    def run(self, devices: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Upgrade all of them at once; yields `{device, outcome, why}` as each ends.

        Outcomes: kept, current (ran it already), skipped, refused, rolled_back, lost.
        """
        waiting: list[_Device] = []
        for found in devices:
            result = self._order(found)
            if result is not None:
                yield result
            else:
                models = [each["name"] for each in found["models"] if each["state"] == "READY"]
                until = self._monotonic() + _INSTALL_LIMIT_S
                waiting.append(_Device(found["id"], found["name"], models, until))
        while waiting:
            time.sleep(_POLL_S)
            try:
                listed = self._admin.get("/shoal/v1/devices")["devices"]
            except CliError:
                listed = []  # a hub or gateway that restarts; the deadlines bound the waiting
            seen = {each["id"]: each for each in listed}
            for device in list(waiting):
                result = self._follow(device, seen.get(device.id))
                if result is not None:
                    waiting.remove(device)
                    yield result

    def _order(self, found: dict[str, Any]) -> dict[str, Any] | None:
        release = self._terms.release
        installation = found["installation"]
        if installation["release"] == release["release"] and not installation["trial"]:
            return _result(found["name"], "current")
        if found["state"] != "READY":
            return _result(found["name"], "skipped", f"it is {found['state']}")
        body = {
            "version": release["version"],
            "ready_within_s": self._terms.ready_within_s,
            "drain_within_s": self._terms.drain_within_s,
        }
        try:
            self._admin.post(f"/shoal/v1/devices/{found['id']}/upgrade", body)
        except CliError as error:
            return _result(found["name"], "skipped", error.message)
        return None

    def _follow(self, device: _Device, seen: dict[str, Any] | None) -> dict[str, Any] | None:
        now = self._monotonic()
        if seen is not None:
            installation, progress = seen["installation"], seen["upgrade"]
            if progress["phase"] == "failed":
                return _result(device.name, "refused", progress["failure"])
            if progress["phase"] == "draining":
                limit_s = self._terms.drain_within_s + self._terms.ready_within_s + _BACK_WITHIN_S
                device.deadline = min(device.deadline, now + limit_s)
            wanted = self._terms.release["release"]
            if installation["failed_release"] == wanted and installation["release"] != wanted:
                return _result(device.name, "rolled_back", installation["failure"])
            if installation["trial"] == wanted and installation["release"] == wanted:
                return self._judge(device, seen)
        if now >= device.deadline:
            return _result(device.name, "lost", "it did not come back in time")
        return None

    def _judge(self, device: _Device, seen: dict[str, Any]) -> dict[str, Any] | None:
        """READY with what it served before, and a request served: it stays."""
        ready = {each["name"] for each in seen["models"] if each["state"] == "READY"}
        if seen["state"] != "READY" or not ready.issuperset(device.models):
            return None
        for model in device.models:
            body = {
                "model": model,
                "prompt": "a",
                "max_tokens": 1,
                "shoal": {"device": device.id, "privacy": "local_only"},
            }
            try:
                self._user.post("/v1/completions", body)
            except CliError:
                return None  # asked again until the device's own watchdog has had enough
        path = f"/shoal/v1/devices/{device.id}/upgrade/verdict"
        try:
            self._admin.post(path, {"release": self._terms.release["release"], "keep": True})
        except CliError:
            return None
        return _result(device.name, "kept")


def _result(device: str, outcome: str, why: str = "") -> dict[str, Any]:
    return {"device": device, "outcome": outcome, "why": why}
