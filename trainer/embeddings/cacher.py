"""The process that looks ahead (Bagpipe's oracle cacher): reads the data, and serves each trainer its part of each
iteration. `python -m holdfast.trainer.embeddings.cacher RUN_FILE`. The plan is made in `plans`. Imports no torch.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.base.address import bind
from holdfast.base.errors import HoldfastError, ProtocolError
from holdfast.base.service import follow_parent, report
from holdfast.plan.cache.window import FittedWindow, Window
from holdfast.trainer.embeddings.batch import encode
from holdfast.trainer.embeddings.criteo import Sample, batches
from holdfast.trainer.embeddings.plans import FetchFormula, Iteration, iterations
from holdfast.trainer.embeddings.servers.link import Message, address_of
from holdfast.trainer.embeddings.servers.server import accept_all, secret_of
from holdfast.trainer.embeddings.settings import Run


class Cacher:
    """Makes iterations when the first trainer asks for them, and keeps each until all trainers asked for a later one:
    a reply may be lost with its connection. Safe to call from many threads."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._formula = FetchFormula()
        self._window = Window(run.lookahead) if run.lookahead else FittedWindow(run.cache_rows)
        self._uncounted: dict[int, set[int]] = {}
        """Rows of batches that have not come into a fitted window yet."""
        self._planned = 0
        self._kept: dict[int, Iteration] = {}
        self._asked = [run.first] * run.trainers
        self._source = iterations(self._counted(), self._window, run.trainers, run.first, run.snapshot_every)

    def serve(self, message: Message) -> Any:
        """The reply to a request. Raises HoldfastError."""
        head = message.head
        with self._lock:
            if head.get("do") == "figures":
                window = self._window
                return {
                    "formula": self._formula.total,
                    "planned": self._planned,
                    "lookahead": [window.size, window.least, window.most, window.halvings],
                }
            try:
                trainer, number = int(head["trainer"]), int(head["number"])
                self._asked[trainer] = max(number, self._asked[trainer])
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise ProtocolError(f"a request that is none: {error}") from None
            found = self._iteration(number)
        return encode(found, trainer)

    def _iteration(self, number: int) -> Iteration:
        while number not in self._kept:
            try:
                made = next(self._source, None)
            except OSError as error:
                raise HoldfastError(f"{error.filename}: {error.strerror}") from None
            if made is None:
                raise ProtocolError(f"there is no iteration {number}")
            for entered in [number for number in made.fetch if number in self._uncounted]:
                self._formula.add(entered, self._uncounted.pop(entered), made.number)
            self._planned += sum(len(rows) for each in made.fetch.values() for rows in each)
            self._kept[made.number] = made
        for old in [kept for kept in self._kept if kept < min(self._asked)]:
            del self._kept[old]
        return self._kept[number]

    def _counted(self) -> Iterator[list[Sample]]:
        run = self._run
        source = batches([Path(name) for name in run.data], run.batch, run.first)
        for number, batch in enumerate(itertools.islice(source, run.steps - run.first), run.first):
            keys = {key for sample in batch for key in sample.keys}
            if run.lookahead:
                self._formula.add(number, keys, number - run.lookahead + 1)
            else:
                self._uncounted[number] = keys
            yield batch


def main() -> int:
    """Serve until a signal. Prints {"address": "HOST:PORT"} when it listens."""
    run = Run.read(Path(sys.argv[1]))
    with bind("127.0.0.1", 0) as sock:
        sock.listen(64)  # who reads the line may connect at once
        print(json.dumps({"address": address_of(sock)}), flush=True)
        accept_all(sock, secret_of(None), Cacher(run).serve)
    return 0


if __name__ == "__main__":
    follow_parent()
    sys.exit(report(main))
