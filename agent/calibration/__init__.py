"""Which variant, threads, KV type and slots suit this device: measured once, kept by hardware.

`python -m agent.calibration --help`. `choosing` and `kv_types` decide (pure), `trial` runs one
candidate as a real engine process, `store` keeps what was found, and `in_use` says what an agent
makes of it.
"""
