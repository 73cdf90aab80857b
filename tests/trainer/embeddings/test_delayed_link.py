"""The benchmark's link with a round-trip time, and its formula of a step."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.delayed_link import delayed

ROUND_TRIP_S = 0.5
WAIT_S = 30.0


def test_bytes_are_late_in_both_directions_and_wait_for_no_reply() -> None:
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def echo() -> None:
            connection, _ = listening.accept()
            with connection:
                while piece := connection.recv(1):
                    seen.append(piece)
                    connection.sendall(piece)

        threading.Thread(target=echo, daemon=True).start()
        with delayed(f"127.0.0.1:{listening.getsockname()[1]}", ROUND_TRIP_S) as address:
            host, port = address.split(":")
            with socket.create_connection((host, int(port)), WAIT_S) as sock:
                began = time.monotonic()
                for piece in b"0123456789":
                    sock.sendall(bytes([piece]))
                first = sock.recv(1)
                assert time.monotonic() - began >= ROUND_TRIP_S
                assert seen == [bytes([one]) for one in b"0123456789"], "all were on the way at once"
                found = first
                while len(found) < 10:
                    found += sock.recv(16)
                assert found == b"0123456789"
                # A later one is as late as the first.
                began = time.monotonic()
                sock.sendall(b"x")
                assert sock.recv(1) == b"x"
                assert time.monotonic() - began >= ROUND_TRIP_S


@pytest.mark.slow
@pytest.mark.calm
def test_the_benchmark_counts_what_the_data_say_and_shows_an_exposed_round_trip() -> None:
    words = ["--steps", "16", "--batch", "8", "--windows", "1", "2", "--round-trip-ms", "400", "--repeats", "1"]
    command = [sys.executable, "benchmarks/embeddings.py", *words, "--json"]
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout)["rows"]
    assert one["sync_now_bytes"] == one["formula_bytes"] == 0
    assert two["sync_now_bytes"] == two["formula_bytes"] > 0
    # Lower bounds hold however slow the machine is: a round trip in each step, or one in two steps.
    assert one["measured_ms"] >= 400
    assert two["measured_ms"] >= 200
    assert one["formula_ms"] == pytest.approx(one["without_ms"] + 400)
    assert two["formula_ms"] == pytest.approx(max(two["without_ms"], (two["without_ms"] + 400) / 2))
