"""Changing the version of many devices' agents, in batches: what is wanted, and how far it is."""
