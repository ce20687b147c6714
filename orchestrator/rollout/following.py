"""One device through a rollout, and one batch after the other; pure, the time passed in.

    waiting -> due -> ordered -> kept | current | skipped | refused | rolled_back | lost

The hub that has the device moves it on from `due`; one hub opens batches and closes the
rollout. A device that nobody confirms goes back by itself, so a hub that ends in between
leaves nothing half done: it, or another, goes on from what is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.fleet.view import DeviceId
from orchestrator.rollout.model import FAILED, OPEN, Outcome, Phase, Rollout, Target

# Installing is the device's own time: pip, an index, maybe a compiler.
INSTALL_LIMIT_S = 3_600
# For the device's own watchdog to have acted, and the agent before to be back.
BACK_WITHIN_S = 60
# For a device whose batch is due to be seen by its hub.
DUE_WITHIN_S = 60


@dataclass(frozen=True, slots=True)
class Seen:
    """What the hub sees of a device on its present connection."""

    epoch: int
    ready: bool
    release: str  # that runs
    trial: str
    failed_release: str
    failure: str
    progress: str  # phase of the order on this connection; empty: none
    progress_failure: str
    refusal: str  # why it takes no upgrade from here; empty: it does
    models: tuple[str, ...]  # that are READY
    proven: bool = False  # each of the models it served before answered since it connected


class Act(StrEnum):
    """What the hub is to do now."""

    NOTHING = "nothing"
    ORDER = "order"
    PROVE = "prove"
    CONFIRM = "confirm"


def follow(target: Target, seen: Seen, rollout: Rollout, now_unix_ms: int) -> tuple[Target, Act]:
    """The device's next phase and what to do about it, after the new phase was stored."""
    if target.phase is Phase.DUE:
        return _begin(target, seen, rollout, now_unix_ms)
    if target.phase is not Phase.ORDERED:
        return target, Act.NOTHING
    runs_it = seen.release == rollout.release
    if runs_it and not seen.trial:
        return _ended(target, Phase.KEPT), Act.NOTHING
    if runs_it:
        if not seen.ready or not set(target.models).issubset(seen.models):
            return target, Act.NOTHING
        return target, Act.CONFIRM if seen.proven else Act.PROVE
    if seen.progress == "failed":
        return _ended(target, Phase.REFUSED, seen.progress_failure), Act.NOTHING
    if seen.failed_release == rollout.release and seen.epoch != target.epoch:
        return _ended(target, Phase.ROLLED_BACK, seen.failure), Act.NOTHING
    if seen.progress == "draining" and not target.draining:
        limit_s = rollout.drain_within_s + rollout.ready_within_s + BACK_WITHIN_S
        deadline = min(target.deadline_unix_ms, now_unix_ms + 1_000 * limit_s)
        return replace(target, draining=True, deadline_unix_ms=deadline), Act.NOTHING
    if seen.epoch != target.epoch and not seen.trial:
        # The stream, or a hub, broke off: whether the order arrived is not known. It is
        # given again; a device that is at it goes on.
        return replace(target, epoch=seen.epoch, draining=False), Act.ORDER
    return target, Act.NOTHING


def _begin(target: Target, seen: Seen, rollout: Rollout, now_unix_ms: int) -> tuple[Target, Act]:
    if seen.release == rollout.release and not seen.trial:
        return _ended(target, Phase.CURRENT), Act.NOTHING
    why = seen.refusal or ("" if seen.ready else "it is not READY")
    if why:
        return _ended(target, Phase.SKIPPED, why), Act.NOTHING
    ordered = replace(
        target,
        phase=Phase.ORDERED,
        models=seen.models,
        epoch=seen.epoch,
        deadline_unix_ms=now_unix_ms + 1_000 * INSTALL_LIMIT_S,
    )
    return ordered, Act.ORDER


def advance(
    rollout: Rollout, targets: Mapping[DeviceId, Target], now_unix_ms: int
) -> tuple[Rollout, Sequence[Target]]:
    """The rollout with its outcome, and the devices that changed: lost ones, or the next batch."""
    late = [
        _late(target)
        for target in targets.values()
        if target.phase in OPEN and now_unix_ms >= target.deadline_unix_ms
    ]
    if late:
        return rollout, late
    phases = [target.phase for target in targets.values()]
    if any(phase in OPEN for phase in phases):
        return rollout, ()
    waiting = [target for target in targets.values() if target.phase is Phase.WAITING]
    if waiting and rollout.cancelled:
        outcome = Outcome.CANCELLED
    elif sum(phase in FAILED for phase in phases) > rollout.max_failures:
        outcome = Outcome.STOPPED
    elif waiting:
        until = now_unix_ms + 1_000 * DUE_WITHIN_S
        batch = sorted(waiting, key=lambda each: each.position)[: rollout.batch_size]
        return rollout, [replace(each, phase=Phase.DUE, deadline_unix_ms=until) for each in batch]
    else:
        outcome = Outcome.DONE
    return replace(rollout, outcome=outcome, ended_unix_ms=now_unix_ms), ()


def _late(target: Target) -> Target:
    if target.phase is Phase.DUE:
        return _ended(target, Phase.SKIPPED, "it is connected to no hub")
    return _ended(target, Phase.LOST, "it did not come back in time")


def _ended(target: Target, phase: Phase, why: str = "") -> Target:
    return replace(target, phase=phase, why=why)
