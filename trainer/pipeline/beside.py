"""A thread for what FSDP2 does on the host between two of its own streams, where a device has none.

FSDP2 copies gradients together, has them summed, and hands out the sums. On a GPU that is a queue of its own; on a CPU
its caller would wait for the network in between. Here the caller goes on as soon as the collective has begun. So each
rank still begins its collectives in the order of its list, whatever the threads do: peers begin them in the same one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.trainer.mesh import collectives


class Beside:
    """Work with one collective in it, on a thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        """Returns when the collective has begun, or `work` is over."""
        self._work = work
        self._error: BaseException | None = None
        self._begun = threading.Event()
        self.num_bytes = 0
        """Of the whole buffer that is summed."""
        self._thread = threading.Thread(target=self._run, name="reduction", daemon=True)
        self._thread.start()
        self._begun.wait()

    def finish(self) -> None:
        """Wait for the end. Raises what `work` raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with collectives.reported_to(self._on_begun):
                self._work()
        except BaseException as error:  # raised again by the thread that trains
            self._error = error
        finally:
            self._begun.set()

    def _on_begun(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._begun.set()
