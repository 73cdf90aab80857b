"""The embedded trainer in blocks of steps: after each block it reports how long they took and waits to go on.

gated_trainer.py SOCKET NAME BLOCK [trainer flags]
"""

import itertools
import json
import socket
import sys
import time
from typing import Any

from holdfast.trainer.__main__ import main as train
from holdfast.trainer.run import loop


def gate(where: str, name: str, block: int) -> None:
    """Make Trainer.step stop before each block. Times run from step to step, so they hold all that a step does."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(where)
    orders = line.makefile("r")
    line.sendall(json.dumps({"name": name}).encode() + b"\n")
    unhindered = loop.Trainer.step
    walls: list[float] = []
    cpus: list[float] = []

    def step(self: Any, number: int) -> Any:
        if number % block == 0:
            if walls:
                walls.append(time.perf_counter())
                cpus.append(time.process_time())
                answer = {"wall": _differences(walls), "cpu": _differences(cpus)}
                line.sendall(json.dumps(answer).encode() + b"\n")
            if not orders.readline():
                raise SystemExit(0)
            walls.clear()
            cpus.clear()
        walls.append(time.perf_counter())
        cpus.append(time.process_time())
        return unhindered(self, number)

    loop.Trainer.step = step  # type: ignore[method-assign]


def _differences(values: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(values)]


if __name__ == "__main__":
    gate(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    sys.exit(train(sys.argv[4:]))
