"""Trains beside a process that writes into its probe's memory whatever it likes, and cuts it short at last. What else
the agent reads of a worker is made larger than any memory: in a first attempt, which fails, its error file.

scribbling.py ASKED: it ends once it has scribbled for a while and that file is there.
"""

import os
import random
import subprocess
import sys
import time

SCRIBBLER = """
import os, random, struct, sys, time
from holdfast.agent.probe_file import layout
path, rng = sys.argv[1], random.Random(7)
fd = os.open(path, os.O_RDWR)
HUGE = 1 << 40
end = time.monotonic() + 4
longs = [-(1 << 63), (1 << 63) - 1, -1, 1 << 62]
while time.monotonic() < end:
    first, last = ([rng.choice(longs) for _ in range(n)] for n in (3, 2))
    state = layout.STATE.pack(*first, float("nan"), *last)
    os.pwrite(fd, layout.seal(state), layout.AT_STATE)
    index = rng.randrange(layout.STEPS)
    step = [index, rng.choice(longs), rng.choice(longs), rng.choice([float("nan"), -1.0]), float("inf"), 1 << 62, 1]
    os.pwrite(fd, layout.seal(layout.STEP.pack(*step)), layout.AT_STEPS + index * layout.RECORD)
    for word in (layout.WORD_PID, layout.WORD_STEPS, layout.WORD_SPANS, layout.WORD_NAMES, layout.WORD_BEGUN):
        os.pwrite(fd, struct.pack("<q", rng.choice(longs)), 8 * word)
    where = rng.randrange(layout.HEADER.size, layout.SIZE - 4096)
    os.pwrite(fd, rng.randbytes(4096), where)
    for suffix in (".saved", ".stacks"):  # sparse; the agent empties the file of stacks when it asks
        with open(path + suffix, "a") as file:
            file.truncate(HUGE)
    time.sleep(0.001)
open(path + ".restored", "w").write("[" * 4000)
os.mkfifo(path + ".plan") if not os.path.exists(path + ".plan") else None
os.truncate(path, 100)
"""


def main() -> None:
    from holdfast.agent import probe

    rank, path = int(os.environ["RANK"]), os.environ["HOLDFAST_PROBE"]
    if os.environ["HOLDFAST_GENERATION"] == "1":
        if rank == 0:
            time.sleep(60)
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            file.truncate(1 << 40)
        os._exit(3)
    other = subprocess.Popen([sys.executable, "-c", SCRIBBLER, path]) if rank == 0 else None
    n, asked = 0, sys.argv[1]
    end = time.monotonic() + 90
    while not (n > 300 and os.path.exists(asked)) and time.monotonic() < end:
        time.sleep(0.02)
        if rank == 1:  # in its own words
            probe.step(random.choice([-5, n, n + (1 << 70)]), loss=1.0, tokens=random.choice([-1, 1, 1 << 62]))
        n += 1
    if other is not None and other.wait(30):
        sys.exit(f"the scribbler ended with {other.returncode}")
    os._exit(0)  # rank 0's own mapping was cut short: to touch it again would be its own SIGBUS


if __name__ == "__main__":
    main()
