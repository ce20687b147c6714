"""Versions side by side: fetched and installed while the old one serves, then tried."""
