"""Counts up the byte counters of a synthetic sysfs about every millisecond, in place: counters.py SYSFS."""

import os
import random
import sys
import time
from pathlib import Path


def main() -> None:
    files = sorted(Path(sys.argv[1]).glob("class/infiniband/*/ports/1/counters/port_*_data"))
    opened = [os.open(path, os.O_WRONLY) for path in files]
    values = [10**15] * len(opened)  # all of one width, so that no old digit is left behind
    while True:
        for i, fd in enumerate(opened):
            values[i] += random.randrange(6_000_000)  # words of 4 bytes: up to 200 Gbit/s
            os.pwrite(fd, b"%d\n" % values[i], 0)
        time.sleep(0.001)


if __name__ == "__main__":
    main()
