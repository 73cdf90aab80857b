"""The benchmark's link with a round-trip time, and its formula of a step."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from forked import Zygote
from programs import figures

from benchmarks.delayed_link import delayed

ROUND_TRIP_S = 0.5
WAIT_S = 30.0
MANY = bytes(range(200))
"""One after the other, each half a round trip late behind the one before it, they would take longer than WAIT_S."""


def test_bytes_are_late_in_both_directions_and_wait_for_no_reply() -> None:
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def echo() -> None:
            """Replies to nothing before it has many, then to each."""
            connection, _ = listening.accept()
            with connection:
                while len(seen) < len(MANY):
                    seen.append(connection.recv(1))
                connection.sendall(b"".join(seen))
                while piece := connection.recv(1):
                    connection.sendall(piece)

        threading.Thread(target=echo, daemon=True).start()
        with delayed(f"127.0.0.1:{listening.getsockname()[1]}", ROUND_TRIP_S) as address:
            host, port = address.split(":")
            with socket.create_connection((host, int(port)), WAIT_S) as sock:
                began = time.monotonic()
                for piece in MANY:
                    sock.sendall(bytes([piece]))
                    time.sleep(0.001)  # so that the link gets most of them singly
                found = sock.recv(1)
                assert time.monotonic() - began >= ROUND_TRIP_S
                while len(found) < len(MANY):
                    found += sock.recv(16)
                assert found == MANY
                # A later one is as late as the first.
                began = time.monotonic()
                sock.sendall(b"x")
                assert sock.recv(1) == b"x"
                assert time.monotonic() - began >= ROUND_TRIP_S


@pytest.mark.slow
@pytest.mark.aside
def test_the_benchmark_counts_what_the_data_say(zygote: Zygote, tmp_path: Path) -> None:
    """What of a round trip is exposed is in benchmarks/RESULTS.md: no test says what a busy machine takes."""
    words = ("--steps", "12", "--batch", "8", "--windows", "2", "--round-trip-ms", "20", "--repeats", "1")
    (found,) = figures(zygote, tmp_path, "embeddings.py", *words)["rows"]
    assert found["sync_now_bytes"] == found["formula_bytes"] > 0
    assert found["formula_ms"] == pytest.approx(max(found["without_ms"], (found["without_ms"] + 20) / 2))
    assert found["measured_ms"] > 0
