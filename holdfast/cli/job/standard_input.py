"""Standard input for a job with a single worker on this host: a named pipe for each attempt.

A worker opens the pipe of its attempt and waits until it is opened here; so nothing is lost, whichever side is first. A
later attempt reads on where the one before had read to.
"""

import os
import select
import signal
import threading
from pathlib import Path

CHUNK = 1 << 16


def pipe_of(path: str, generation: int) -> str:
    """The pipe of one attempt."""
    return f"{path}.{generation}"


class StandardInput:
    """Forwards the file descriptor `source` in a thread that ends with the process."""

    def __init__(self, folder: Path, source: int = 0) -> None:
        self.path = str(folder / "stdin")
        self._source = source
        self._waiting = b""  # read, and not taken by any worker
        self._is_over = False
        self._make(1)
        self._thread = threading.Thread(target=self._run, name="standard-input", daemon=True)

    def start(self) -> None:
        if threading.current_thread() is threading.main_thread():
            # In the background of a terminal, reading it would stop the command: then there is no input.
            signal.signal(signal.SIGTTIN, signal.SIG_IGN)
        self._thread.start()

    def _make(self, generation: int) -> None:
        os.mkfifo(pipe_of(self.path, generation), 0o600)

    def _run(self) -> None:
        generation = 1
        while True:
            try:
                pipe = os.open(pipe_of(self.path, generation), os.O_WRONLY | os.O_CLOEXEC)  # waits for the worker
                self._make(generation + 1)
            except OSError:
                return  # the folder is gone: the job is over
            try:
                self._forward(pipe)
            finally:
                os.close(pipe)
            generation += 1

    def _forward(self, pipe: int) -> None:
        """Until the input ends, or the worker does."""
        poll = select.poll()
        poll.register(pipe, select.POLLERR)
        if not self._is_over:
            poll.register(self._source, select.POLLIN)
        while self._waiting or not self._is_over:
            try:
                while self._waiting:
                    self._waiting = self._waiting[os.write(pipe, self._waiting) :]
            except OSError:
                return  # the worker ended: the next one gets it
            if any(fd == pipe for fd, _ in poll.poll()):
                return
            try:
                self._waiting = os.read(self._source, CHUNK)
            except OSError:
                self._waiting = b""
            self._is_over = not self._waiting
