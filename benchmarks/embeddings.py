"""What a round trip to the embedding servers costs a step, by look-ahead: measured, and by formula (Bagpipe, C7).

Servers behind a link with a round-trip time, trainers and a cacher as `holdfast train-embeddings` starts them. T is the
time of a step over the same relay without delay, R the round-trip time. The rows of a batch that comes into the queue
are asked for when the batch that it follows L batches later is done and written back: L - 1 steps before they are
needed. So L steps take R + T or more, and a step max(T, (T + R) / L): nothing is exposed from (L - 1) T >= R on, close
to Bagpipe's L T > R, which counts the present batch, too.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from common import finish, parser, scratch
from delayed_link import delayed

from holdfast.trainer.embeddings.criteo import batches, write_zipf
from holdfast.trainer.embeddings.launch import Outcome, run_all
from holdfast.trainer.embeddings.servers.link import SECRET
from holdfast.trainer.embeddings.settings import Run

HEAD = ("L", "R ms", "T ms", "formula ms", "measured ms", "exposed ms", "L T > R", "sync now bytes", "formula bytes")
FLOAT_BYTES = 4
WARMUP = 10
"""Steps that are not measured: the first fetches are for all batches in the queue."""


def step_s(without_s: float, round_trip_s: float, window: int) -> float:
    """Seconds of a step by the formula."""
    return max(without_s, (without_s + round_trip_s) / window)


@contextmanager
def server(secret: bytes) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.trainer.embeddings.servers.server"],
        env={**os.environ, SECRET: secret.decode()},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["address"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def measured(run: Run, servers: Sequence[str], round_trip_s: float, secret: bytes) -> tuple[float, Outcome]:
    """Mean seconds of a step behind the warm-up, and the run's figures."""
    at: dict[int, float] = {}
    with ExitStack() as stack:
        links = [stack.enter_context(delayed(address, round_trip_s)) for address in servers]
        named = replace(run, name=secrets.token_hex(8), servers=links)
        outcome = run_all(named, 0, secret, lambda step, loss: at.update({step: time.monotonic()}))
    return (at[run.steps] - at[WARMUP]) / (run.steps - WARMUP), outcome


def sync_now_bytes(run: Run) -> int:
    """Of rows that two batches in a row need, by the data alone."""
    needs = [
        {key for sample in batch for key in sample.keys}
        for batch in itertools.islice(batches([Path(name) for name in run.data], run.batch), run.steps)
    ]
    rows = sum(len(a & b) for a, b in itertools.pairwise(needs)) if run.lookahead > 1 else 0
    return rows * run.dim * FLOAT_BYTES if run.trainers > 1 else 0


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--steps", type=int, default=100)
    made.add_argument("--batch", type=int, default=64)
    made.add_argument("--values", type=int, default=2000, help="of each of the 26 tables")
    made.add_argument("--trainers", type=int, default=2)
    made.add_argument("--windows", type=int, nargs="+", default=[1, 2, 3, 5, 10])
    made.add_argument("--round-trip-ms", type=float, nargs="+", default=[20.0, 100.0])
    made.add_argument("--repeats", type=int, default=3, help="the median counts; delays take turns")
    options = made.parse_args()
    secret = secrets.token_hex(32).encode()
    rows: list[dict[str, object]] = []
    load = os.getloadavg()[0]
    with scratch() as folder, server(secret) as address:
        write_zipf(folder / "clicks", options.steps * options.batch, options.values, seed=1)
        for window in options.windows:
            run = Run("", [str(folder / "clicks")], options.steps, options.batch, window, options.trainers, 16,
                      "float32", 0, 0.1)  # fmt: skip
            took: dict[float, list[float]] = {}
            for _ in range(options.repeats):
                for round_trip_ms in (0.0, *options.round_trip_ms):
                    found, outcome = measured(run, [address], round_trip_ms / 1e3, secret)
                    took.setdefault(round_trip_ms, []).append(found)
                    assert outcome.is_exact
            without = statistics.median(took.pop(0.0))
            for round_trip_ms, all_ in took.items():
                seconds, round_trip_s = statistics.median(all_), round_trip_ms / 1e3
                rows.append(
                    {
                        "window": window,
                        "round_trip_ms": round_trip_ms,
                        "without_ms": 1e3 * without,
                        "formula_ms": 1e3 * step_s(without, round_trip_s, window),
                        "measured_ms": 1e3 * seconds,
                        "exposed_ms": 1e3 * (seconds - without),
                        "is_hidden_by_c7": window * without > round_trip_s,
                        "sync_now_bytes": outcome.sync_now_bytes,
                        "formula_bytes": sync_now_bytes(run),
                    }
                )
    result = {"rows": rows, "steps": options.steps, "load_before": load, "load_after": os.getloadavg()[0]}
    finish(result, options.json, HEAD, [list(row.values()) for row in rows])
    if not options.json:
        print(f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
