"""Sequences, scheduling and the step loop, free of llama.cpp."""
