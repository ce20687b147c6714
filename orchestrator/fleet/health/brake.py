"""When most devices look sick at once, the fault is more likely here than there.

Counted are devices that owe tokens or produced some lately: an idle one can show nothing.
While the brake is on, nobody is suspected or ejected. It is released when most look well
again, or after a time: then they are sick indeed, and it does not come on again before
most looked well.
"""

from __future__ import annotations

from collections.abc import Set

from orchestrator.config import HealthTerms
from orchestrator.fleet.view import DeviceId


class Brake:
    """On or off; changes only in `judge`."""

    def __init__(self, terms: HealthTerms) -> None:
        self._terms = terms
        # Since when each device that looks sick does.
        self._onset_ms: dict[DeviceId, float] = {}
        self._on_since_ms: float | None = None
        self._spent = False
        self.text = ""

    @property
    def is_on(self) -> bool:
        """Whether the hub suspects itself."""
        return self._on_since_ms is not None

    def onset_ms(self, device_id: DeviceId) -> float | None:
        """Since when the device looks sick; None: it looks well."""
        return self._onset_ms.get(device_id)

    def judge(self, sick: Set[DeviceId], working: Set[DeviceId], now_ms: float) -> None:
        """Take which devices look sick now, of those that work (sick ones included)."""
        self._onset_ms = {d: self._onset_ms.get(d, now_ms) for d in sick}
        num_working = len(working | sick)
        most = len(sick) > self._terms.brake_share * num_working
        if self._on_since_ms is not None:
            on_for_ms = now_ms - self._on_since_ms
            expired = on_for_ms >= self._terms.brake_max_ms
            if expired or (not most and on_for_ms >= self._terms.brake_min_ms):
                self._on_since_ms, self.text = None, ""
                self._spent = expired and most
            return
        self._spent = self._spent and most
        oldest_ms = now_ms - self._terms.brake_window_ms
        num_at_once = sum(onset_ms >= oldest_ms for onset_ms in self._onset_ms.values())
        if (
            not self._spent
            and num_working >= self._terms.brake_min_devices
            and num_at_once > self._terms.brake_share * num_working
        ):
            self._on_since_ms = now_ms
            self.text = (
                f"{num_at_once} of {num_working} working devices look sick at once:"
                " the fault is likely here, none is suspected or ejected"
            )
