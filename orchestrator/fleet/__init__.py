"""Devices: their life, their registry, and the view the router gets."""
