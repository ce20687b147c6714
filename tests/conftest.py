"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine's load than of the code under test.
_ANY_LOAD = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in every run, so that a red run is the change's own fault;
# `pytest --hypothesis-profile=new_examples` looks for others.
settings.register_profile("same_examples", _ANY_LOAD, derandomize=True)
settings.register_profile("new_examples", _ANY_LOAD)
settings.load_profile("same_examples")
