"""Processes that Ray starts on its head node and that nobody uses here."""

from __future__ import annotations

from typing import Any


def end_unused_processes() -> None:
    """End them, once Ray runs: models need the cores and the memory.

    The log monitor (this driver asks for no logs), the autoscaler's monitor (there is no
    autoscaler) and what is left of the dashboard. Ray has no setting for any of them.
    """
    from ray._private import worker

    node: Any = worker._global_node
    node.kill_log_monitor(check_alive=False)
    node.kill_monitor(check_alive=False)
    node.kill_dashboard(check_alive=False)
