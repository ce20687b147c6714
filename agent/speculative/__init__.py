"""Drafting for a larger model: acceptance, the window's size, and when it pays. Pure."""
