"""Requests that wait until a device has room: whose turn it is, how long it will take.

Pure cores: no I/O, the clock is an argument.

- `entry`: what the order depends on; `fair_queue`: the order among tenants and within one.
- `waiting_queue`: bounds, predicted waits and refusals over all models; `drain_rate`: how fast
  places come free; `token_bucket`: a tenant's limit over time.
"""
