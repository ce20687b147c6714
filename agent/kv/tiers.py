"""All tiers of one model's blocks on one device, and what goes into which of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from agent.kv.codec import Block
from agent.kv.disk import DiskTier
from agent.kv.fetching import PrefixRequest
from agent.kv.host import HostTier
from agent.kv.ledger import BlockLedger, SeqKey
from agent.kv.pacing import Pace
from agent.kv.redis_tier import SharedTier
from agent.kv.seal import Sealer
from agent.kv.sharing import NotShared, SharingState
from agent.kv.shelf import DiskShelf
from shoal.blocks import BlockHash
from shoal.kv_sharing import SharePolicy


class Tiers:
    """The host tier, and disk and shared tier where there are any; for the owner thread."""

    def __init__(
        self,
        ledger: BlockLedger,
        sealer: Sealer,
        disk: DiskTier | None,
        shared: SharedTier | None,
        disk_write_failed: Callable[[BlockHash], None],
    ) -> None:
        """`disk_write_failed` is called on the disk's writer thread."""
        self.ledger = ledger
        self.host = HostTier(ledger)
        self.shared = shared
        self.sealer = sealer
        self.pace = Pace()
        self.shelf: DiskShelf | None = None
        # How often a block was not handed to the shared tier, by reason.
        self._not_shared: Counter[NotShared] = Counter()
        if disk is not None:
            self.shelf = DiskShelf(ledger.disk, disk, sealer, disk_write_failed, self.pace)
        if shared is not None:
            shared.pace = self.pace

    def keep(
        self,
        block: BlockHash,
        data: Block,
        disk_salt: bytes | None,
        *,
        of: SeqKey | None = None,
    ) -> None:
        """Into the host tier; behind it to disk where the tenant's salt is given."""
        self.host.put(block, data, of=of)
        if self.shelf is not None and disk_salt is not None:
            self.shelf.keep(block, disk_salt, data)

    def shares_at_once(self, request: PrefixRequest) -> bool:
        """Whether a block that this request computes goes to the shared tier when offered."""
        shared = self.shared
        return (
            shared is not None
            and request.share
            and shared.policy is SharePolicy.ALWAYS
            and shared.available
        )

    def share(self, request: PrefixRequest, block: BlockHash, data: Block, *, is_new: bool) -> None:
        """To the shared tier, behind, unless there is a reason not to, which is counted.

        `is_new`: computed just now; else it is used again.
        """
        shared = self.shared
        reason: NotShared | None
        if shared is None:
            reason = NotShared.NO_SHARED_TIER
        elif not request.share:
            reason = NotShared.LOCAL_ONLY
        elif is_new and shared.policy is SharePolicy.ON_SECOND_USE:
            return
        else:
            reason = shared.offer(block, request.tenant_salt, data)
        if reason is not None:
            self._not_shared[reason] += 1

    def sharing(self) -> SharingState:
        """What is done with blocks that are computed now."""
        if self.shared is None:
            return SharingState(SharePolicy.ALWAYS, 0, NotShared.NO_SHARED_TIER)
        return self.shared.state()

    def figures(self) -> dict[str, float]:
        """Present sizes and cumulative evictions, named as metrics are."""
        ledger = self.ledger
        figures: dict[str, float] = {
            "kv_host_bytes": self.host.used_bytes,
            "kv_host_evictions": ledger.host.num_evictions,
            "kv_disk_bytes": ledger.disk.used_bytes,
            "kv_disk_evictions": ledger.disk.num_evictions,
            **{f"kv_not_shared_{why}": count for why, count in self._not_shared.items()},
        }
        if self.shelf is not None:
            figures["kv_disk_dropped"] = self.shelf.num_dropped
        if self.shared is not None:
            figures.update(self.shared.figures())
        return figures

    def drain(self, timeout_s: float) -> bool:
        """Wait until disk and shared tier have what was offered to them."""
        disk = self.shelf is None or self.shelf.drain(timeout_s)
        return disk and (self.shared is None or self.shared.drain(timeout_s))

    def close_disk_writes(self, timeout_s: float) -> None:
        """Write what is queued for the disk, for at most `timeout_s`."""
        self.pace.release()
        if self.shelf is not None:
            self.shelf.close(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Let go of the disk's folder and of the shared tier, when nobody reads any more."""
        if self.shelf is not None:
            self.shelf.disk.close()
        if self.shared is not None:
            self.shared.close(timeout_s)
