"""The shared tier over links that are slow, and over TLS."""

from __future__ import annotations

import datetime
import ipaddress
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from structlog.testing import capture_logs

from agent.kv.fetching import Tier
from agent.kv.redis_tier import SharedTier
from agent.kv.sharing import SharedTierConfig
from tests.harness.kv_rig import LIVENESS_S, Rig, prompt, sealer
from tests.harness.ports import free_port
from tests.harness.redis_server import running_redis

NUM_BLOCKS = 10


def rig_on(config: SharedTierConfig, prefill_tokens_per_s: float = 700.0) -> Rig:
    return Rig(shared=SharedTier(config, sealer()), prefill_tokens_per_s=prefill_tokens_per_s)


@contextmanager
def slow_link(url: str, bytes_per_s: int) -> Iterator[str]:
    """A unix socket that passes answers of the Redis at `url` on at a trickle."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-l-"))
    path = str(folder / "slow.sock")
    over = threading.Event()
    threads: list[threading.Thread] = []

    def pump(source: socket.socket, target: socket.socket, rate: int) -> None:
        with suppress(OSError):
            while not over.is_set() and (data := source.recv(200 if rate else 65536)):
                if rate:
                    over.wait(len(data) / rate)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(url.removeprefix("unix://"))
                sockets.extend([near, far])
                for args in ((near, far, 0), (far, near, bytes_per_s)):
                    threads.append(threading.Thread(target=pump, args=args, daemon=True))
                    threads[-1].start()

    sockets: list[socket.socket] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    acceptor = threading.Thread(target=accept, args=(listener,), daemon=True)
    acceptor.start()
    try:
        yield f"unix://{path}"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(5)
        for opened in sockets:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(5)
        for opened in sockets:
            opened.close()
        shutil.rmtree(folder)


def test_a_trickling_link_costs_the_limit_once_and_is_then_not_used() -> None:
    with running_redis() as url:
        first = rig_on(SharedTierConfig(url))
        first.run(prompt(*range(NUM_BLOCKS)))
        assert first.cache.drain(10)
        first.stop()
        with slow_link(url, bytes_per_s=700) as slow, capture_logs():
            # Prefill is so fast that nothing that arrives buys more time.
            second = rig_on(SharedTierConfig(slow), prefill_tokens_per_s=1e9)
            started = time.monotonic()
            restored = second.run(prompt(*range(NUM_BLOCKS)))
            assert time.monotonic() - started < 1.5
            assert restored.num_tokens < NUM_BLOCKS * 128
            started = time.monotonic()
            assert second.run(prompt(50, 51)).num_tokens == 0
            assert time.monotonic() - started < 0.2
            started = time.monotonic()
            second.stop()
            assert time.monotonic() - started < 5


def test_a_link_once_found_slow_is_tried_again_later() -> None:
    now = [1000.0]
    shared = SharedTier(SharedTierConfig("unix:///nowhere"), sealer(), clock=lambda: now[0])
    shared.fetched(num_bytes=1000, seconds=1.0)
    assert shared.bandwidth_bytes_per_s == 1000
    now[0] += 61
    assert shared.bandwidth_bytes_per_s is None
    shared.close()


@pytest.fixture
def tls_redis(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """(rediss:// URL, CA file) of a redis-server that speaks TLS alone."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server with TLS on the PATH")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shared tier")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    ca_file, key_file = tmp_path / "tls.crt", tmp_path / "tls.key"
    ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    port = free_port()
    options = f"--port 0 --tls-port {port} --bind 127.0.0.1 --tls-auth-clients no".split()
    files = ["--tls-cert-file", str(ca_file), "--tls-key-file", str(key_file)]
    files += ["--tls-ca-cert-file", str(ca_file), "--save", "", "--dir", str(tmp_path)]
    process = subprocess.Popen([binary, *options, *files], stdout=subprocess.DEVNULL)
    url = f"rediss://127.0.0.1:{port}"
    try:
        with redis.Redis.from_url(url, ssl_ca_certs=str(ca_file)) as client:
            give_up = time.monotonic() + LIVENESS_S
            while True:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    if time.monotonic() > give_up or process.poll() is not None:
                        pytest.skip("this redis-server has no TLS")
                    time.sleep(0.05)
        yield url, ca_file
    finally:
        process.terminate()
        process.wait(10)


def test_blocks_travel_over_tls_and_an_unknown_authority_is_refused(
    tls_redis: tuple[str, Path],
) -> None:
    url, ca_file = tls_redis
    first = rig_on(SharedTierConfig(url, ca_file=str(ca_file)))
    first.run(prompt(1, 2))
    assert first.cache.drain(10)
    second = rig_on(SharedTierConfig(url, ca_file=str(ca_file)))
    assert second.run(prompt(1, 2)).tiers == (Tier.REDIS, Tier.REDIS)
    stranger = rig_on(SharedTierConfig(url))
    with capture_logs():
        assert stranger.run(prompt(1, 2)).num_tokens == 0
        assert stranger.cache.drain(10)
    assert stranger.shared is not None
    assert stranger.shared.counters.failures > 0
    for rig in (first, second, stranger):
        rig.stop()
