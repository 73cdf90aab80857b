"""SIGTERM as a notice: Slurm, Kubernetes, a spot market or an operator that drains a node is about to end this
worker. What it knows is saved first; then all workers of the job end together. No torch.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM
"""What a shell calls a process that SIGTERM ended."""


class Preempted(SystemExit):
    """A worker was asked to end, and what could be saved is saved. Not caught, it ends the process with EXIT_CODE."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)


class Notice:
    """Whether this process was asked to end. Before `listen` and after `stop`, SIGTERM ends it at once."""

    def __init__(self) -> None:
        self.given = False
        self._listens = False

    def listen(self) -> None:
        """From now on. A handler that the script has brought stays in place, and a thread can have none."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._take)
            self._listens = True

    def stop(self) -> None:
        """As it was before, unless the notice came: a process that is ending may be asked again. Idempotent."""
        if self._listens and not self.given and threading.current_thread() is threading.main_thread():
            self._listens = False
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.given = True
