"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine's load than of the code under test.
settings.register_profile("any_load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any_load")
