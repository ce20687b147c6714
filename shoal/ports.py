"""Hosts and ports: whether a loopback port can be had, and what a host is."""

from __future__ import annotations

import ipaddress
import os
import socket


def bind_failure(port: int) -> str | None:
    """Why this machine's loopback port cannot be bound now, in the system's words; None: it can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers bind: a port whose last connections linger in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return os.strerror(error.errno or 0)
    return None


def port_is_free(port: int) -> bool:
    """Whether this machine's loopback port can be bound now."""
    return bind_failure(port) is None


def another_port(taken: int) -> int:
    """One to suggest in the place of `taken`: the next that is free, privileged ones left out."""
    above = range(max(taken + 1, 1024), 65_536)
    return next((port for port in above if port_is_free(port)), 1024)


def is_loopback(host: str) -> bool:
    """Whether a host, by name or address, is this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def url_host(host: str) -> str:
    """The host as URLs have it: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host
