"""A command that has a cluster of stand-ins and a folder to put away, for tests that signal it at any moment.

`SECONDS [FILE]`: how long it waits; before it puts all away, it goes on only once there is such a file.
"""

import sys
import tempfile
import time
from pathlib import Path

from holdfast.cli.common.interrupts import allowed, guarded
from holdfast.cli.local.cluster import LocalCluster

FAKE = (sys.executable, str(Path(__file__).with_name("fake_daemon.py")))


def body() -> int:
    print("begun", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-run-") as folder, LocalCluster(Path(folder), command=FAKE):
        print("up", flush=True)
        with allowed():
            time.sleep(float(sys.argv[1]))
        print("ending", flush=True)
        while sys.argv[2:] and not Path(sys.argv[2]).exists():
            time.sleep(0.01)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(body))
