"""What tests share: real processes, the real model, plain reference runs."""

from agent.config import bound_spinning

# Reference runs share the machine with the processes under test.
bound_spinning()
