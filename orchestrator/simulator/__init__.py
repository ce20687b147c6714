"""The real router over a virtual clock: what a fleet would do under a workload."""
