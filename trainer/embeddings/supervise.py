"""Restarts of a whole run after one of its processes died, each from the newest snapshot. Imports no torch.

A run that ended has no process left that could still write back, and the next attempt has a name of its own: what a
server elsewhere still has of the old one is dropped. So each row has every update of a step once, whoever died.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace

from holdfast.base.errors import HoldfastError, Unavailable, UsageError
from holdfast.base.retry import Backoff
from holdfast.trainer.embeddings.launch import Outcome
from holdfast.trainer.embeddings.servers import snapshots
from holdfast.trainer.embeddings.settings import Run


class NothingLeft(HoldfastError):
    """A run died when all of its steps were stored: there is nothing to go on with."""


RETRY = Backoff(initial=0.5, cap=10.0)
"""Waits before attempts. They matter when the cause lasts: a server elsewhere that is being started again."""


def supervised(
    run: Run,
    attempt: Callable[[Run], Outcome],
    max_restarts: int,
    on_restart: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome:
    """What `attempt` returns, which is called again after a failure, at most `max_restarts` times.

    Each time it gets the run from its newest snapshot, or from the beginning without any; `on_restart` gets one line.
    UsageError at once, since bad input stays bad; so is Unavailable from the first attempt: nothing was trained.
    HoldfastError for what ended the last attempt.
    """
    delays = RETRY.delays()
    restarts = 0
    while True:
        try:
            return replace(attempt(run), restarts=restarts)
        except UsageError:
            raise
        except HoldfastError as error:
            if restarts == max_restarts or (isinstance(error, Unavailable) and not restarts):
                raise
            first = _newest(run)
            if first >= run.steps:
                raise NothingLeft(f"{error}, after all {run.steps} steps were in a snapshot: nothing is lost") from None
            restarts += 1
            on_restart(f"{error}; restart {restarts} of {max_restarts} from step {first}")
        sleep(next(delays))
        run = replace(run, name=secrets.token_hex(8), first=first)


def _newest(run: Run) -> int:
    try:
        return snapshots.newest(run.store) if run.store else 0
    except OSError as error:
        raise HoldfastError(f"cannot read the snapshots in {run.store}: {error.strerror or error}") from None
