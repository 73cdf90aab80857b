"""Claims a store that was down when the run began, beside training. No torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.base.retry import Backoff
from holdfast.checkpoint.commit.fence import Fence, claim
from holdfast.checkpoint.errors import CheckpointError, StaleGeneration
from holdfast.checkpoint.stores.store import Store

_AGAIN = Backoff(initial=1.0, cap=30.0, jitter=0.2)


class LateClaim:
    """Rank 0's. Used from one thread; the store is asked in another, since it may take its time."""

    def __init__(
        self, store: Store, job: str, generation: int, backoff: Backoff = _AGAIN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._store, self._job, self._generation = store, job, generation
        self._delays, self._clock = backoff.delays(), clock
        self._next = clock() + next(self._delays)
        self._thread: threading.Thread | None = None
        self.outcome: Fence | StaleGeneration | None = None
        """What came of it; None as long as the store is down."""

    def poke(self) -> None:
        """A checkpoint is due: retry, unless an attempt is under way or ended a moment ago."""
        if self.outcome is None and self._thread is None and self._clock() >= self._next:
            self._thread = threading.Thread(target=self._try, name="holdfast-claim", daemon=True)
            self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """For an attempt that is under way."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _try(self) -> None:
        try:
            self.outcome = claim(self._store, self._job, self._generation)
        except StaleGeneration as error:
            self.outcome = error
        except (OSError, CheckpointError):
            self._next = self._clock() + next(self._delays)
        finally:
            self._thread = None
