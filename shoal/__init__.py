"""What two shoal processes must agree on, and the command line."""

__version__ = "0.1.0"
