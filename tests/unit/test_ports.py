from __future__ import annotations

import socket

from shoal.ports import another_port, bind_failure, port_is_free


def test_taken_port_is_told_with_the_reason_and_another_one_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        assert bind_failure(port) == "Address already in use"
        assert another_port(port) != port
        assert port_is_free(another_port(port))
    assert port_is_free(port)


def test_last_port_has_another_one_too() -> None:
    assert 1024 <= another_port(65_535) < 65_535
