"""What a sweep of the journal costs: 100,000 rows, of which nine tenths are too old, and a controller that writes on.

The rows are 10,000 documents of entities, 60,000 former documents of 1.5 kB and 30,000 steps. Times are in
milliseconds, but for the sweep's as a whole.
"""

import sqlite3
import threading
import time
from pathlib import Path

import common

from holdfast.controller.journal.journal import Journal
from holdfast.controller.journal.pruning import Sweep
from holdfast.controller.journal.retention import JournalRetention, Needed
from holdfast.controller.state.events import Record
from holdfast.controller.state.ledger import StepRow

DAY = 86400.0
NOW = 1000 * DAY
DOC = {"text": "x" * 1500}
WRITES, EVERY = 100, 0.02


def fill(journal: Journal) -> None:
    """A tenth of each kind is of today."""
    for batch in range(100):
        at = NOW if batch >= 90 else NOW - 100 * DAY
        for _ in range(5):
            journal.write([Record("node", f"node{n}", DOC) for n in range(100)], at)
        journal.write([Record("incident", f"i{batch * 100 + n}", DOC) for n in range(100)], at)
    rows = [StepRow(n, 1.0, 0.1, 64, NOW if n >= 27_000 else NOW - 100 * DAY, 1) for n in range(30_000)]
    journal.write([Record("job", "j1", {"state": "running"})], NOW)
    journal.write_steps("j1", rows)


def writes(journal: Journal) -> list[float]:
    """How long the controller's writes take, one every 20 ms."""
    taken = []
    for _ in range(WRITES):
        begun = time.perf_counter()
        journal.write([Record("job", "j1", {"state": "running"})], NOW)
        taken.append(time.perf_counter() - begun)
        time.sleep(EVERY)
    return taken


def measure(path: Path) -> dict[str, float]:
    journal = Journal(path)
    fill(journal)
    alone = writes(journal)
    sweep = Sweep(path, Needed(jobs=frozenset({"j1"})), JournalRetention(), NOW)
    batches: list[float] = []
    last = time.perf_counter()

    def rest(seconds: float) -> bool:
        nonlocal last
        batches.append(time.perf_counter() - last)
        time.sleep(seconds)
        last = time.perf_counter()
        return False

    thread = threading.Thread(target=sweep.run, args=(rest,))
    begun = time.perf_counter()
    thread.start()
    beside = []
    while thread.is_alive():
        beside += writes(journal)
    thread.join()
    took = time.perf_counter() - begun
    journal.close()
    left = sqlite3.connect(path).execute("SELECT (SELECT count(*) FROM history) + (SELECT count(*) FROM step)")
    return {
        "rows": sweep.rows, "left": left.fetchone()[0], "sweep_s": took,
        "batch_p99": 1e3 * common.quantile(batches, 0.99),
        "batch_max": 1e3 * max(batches), "write_alone_p99": 1e3 * common.quantile(alone, 0.99),
        "write_beside_p99": 1e3 * common.quantile(beside, 0.99), "write_beside_max": 1e3 * max(beside),
    }  # fmt: skip


def main() -> None:
    options = common.parser(__doc__).parse_args()
    with common.scratch() as folder:
        found = measure(folder / "state" / "controller.sqlite")
    rows = [(name, f"{value:.2f}") for name, value in found.items()]
    common.finish({"medians_ms": {"holdfast": found}}, options.json, ("what", "value"), rows)


if __name__ == "__main__":
    main()
