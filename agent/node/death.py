"""A simulated node failure: everything that a power loss would end, at once and without notice."""

import os
import shutil
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from holdfast.agent.processes.tree import members


def die(leaders: Iterable[int], memory: Iterable[Path]) -> NoReturn:
    """Kill the processes led by `leaders`, wipe what is in this host's memory, and kill this agent.

    What is on disk stays, as it does when a host starts again.
    """
    roots = [pid for pid in leaders if pid]
    for _ in range(2):  # once more for what was started between looking and killing
        for process in members(roots):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    for folder in memory:
        shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive after SIGKILL")
