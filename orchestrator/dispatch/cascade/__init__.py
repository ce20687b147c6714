"""Cascade: the edge answers, its own confidence decides whether the answer stands.

`confidence`, `judging`, `calibration`, `agreement` and `policy` are pure; `generation` runs
one request, `service` wires thresholds, samples and audits round it.
"""
