"""Which variant, threads and slots suit this device: a short measurement, kept by hardware.

`python -m agent.calibration --help`. `choosing` decides (pure), `trial` runs one candidate as a
real engine process, `store` keeps what was found.
"""
