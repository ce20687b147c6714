"""Generated from proto/shoal/v1 by `make stubs`; do not edit."""
