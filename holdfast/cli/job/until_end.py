"""A job followed to its end by the command that submitted it: its log, why it is silent, its exit code."""

import queue
import signal
import sys
import time
from collections.abc import Callable

from holdfast.base.errors import HoldfastError, NotFound, Unavailable
from holdfast.base.retry import Backoff
from holdfast.cli.common import interrupts, output
from holdfast.cli.common.client import OVER, Client, Json
from holdfast.cli.common.output import note
from holdfast.cli.job.console import Console, hide
from holdfast.cli.job.follow import Follower
from holdfast.cli.job.summary import summary

LOOK_S = 5.0
"""Between two looks at a job whose log has lines all the time."""


def follow(client: Client, job: str, failure: Callable[[], str], console: Console, grace: float) -> int:
    """Print the job's log until it ends; its exit code. Ctrl-C (SIGTERM, SIGHUP) stops the job, a second one leaves it.

    `failure` returns why a cluster of our own cannot go on, if so; another's may be down for as long as it takes.
    `grace`: seconds from SIGTERM to SIGKILL of a stop."""
    follower = Follower(client, job)
    follower.start()
    watch = _Watch(client, job, console.note)
    interrupted, asked = 0, False
    while True:
        try:
            with interrupts.allowed():
                if interrupted and not asked:
                    asked = True  # within the try: the second Ctrl-C does not wait for the reply
                    _request_stop(client, job, grace)
                try:
                    line = follower.lines.get(timeout=0.5)
                except queue.Empty:
                    if failure():
                        raise HoldfastError(failure()) from None
                    watch.look()
                    continue
                if line is None:
                    break
                console.show(line)
                if time.monotonic() - watch.looked > LOOK_S:
                    watch.look()
        except KeyboardInterrupt as error:
            if interrupted:
                console.note(
                    f"left job {job} to itself; `holdfast job --job {job}` shows it, "
                    f"`holdfast job stop --job {job}` stops it"
                )
                return interrupts.code_of(error)
            interrupted = interrupts.code_of(error)
            console.note("stopping the job; Ctrl-C again leaves it running")
        except BrokenPipeError:  # `holdfast run ... | head`
            _request_stop(client, job, grace)
            hide(sys.stdout)
            return 128 + signal.SIGPIPE
    if follower.error is not None:
        raise follower.error
    with interrupts.allowed():
        return _exit_code(client, job, interrupted, watch.at_risk)


class _Watch:
    """Prints why the log is silent: once when the job waits for nodes or pauses, once when it continues."""

    def __init__(self, client: Client, job: str, note: Callable[[str], None]) -> None:
        self._client, self._job, self._note = client, job, note
        self._since = 0.0
        self._waits = False
        self.at_risk: Json | None = None
        """When the job was last seen running."""
        self.looked = time.monotonic()

    def look(self) -> None:
        self.looked = time.monotonic()
        try:
            job = self._client.job(self._job) or {}
        except HoldfastError:
            return
        self.at_risk = job.get("at_risk") or self.at_risk
        waits = job.get("state") == "pending"
        if waits and not self._waits:
            self._note(f"job {self._job} is {job.get('reason') or 'waiting for nodes'}")
        self._waits = waits
        pause = job.get("pause")
        since = float(pause["since"]) if pause else 0.0
        if pause and not self._since:
            self._note(f"no step for {output.seconds(pause['seconds'])}: {pause['text']}")
        elif self._since and not pause:
            self._note("the job goes on")
        self._since = since


def _request_stop(client: Client, job: str, grace: float) -> None:
    try:
        client.stop(grace, job)
    except HoldfastError as error:
        note(str(error))


def _exit_code(client: Client, job: str, interrupted: int, at_risk: Json | None) -> int:
    """The job's exit code. The log may end before the state changes."""
    for delay in Backoff(initial=0.05, cap=0.5, deadline=30.0).plan():
        try:
            found = client.job(job) or {}
        except Unavailable as error:
            note(str(error))
            found = {}
        except NotFound:
            raise HoldfastError(f"job {job} is gone: the controller at {client.address} does not know it") from None
        if found.get("state") in OVER:
            _report(client, found, at_risk)
            return _code(found, interrupted)
        time.sleep(delay)
    raise Unavailable(f"the log of job {job} ended, and nothing says how the job did")


def _report(client: Client, job: Json, at_risk: Json | None) -> None:
    try:
        incidents = client.incidents(str(job["id"]))
    except HoldfastError:
        incidents = []
    for line in summary(job, incidents, at_risk):
        note(line)


def _code(job: Json, interrupted: int) -> int:
    code = job.get("exit_code")
    if job["state"] == "finished":
        return 0 if code is None else int(code)
    if interrupted:
        return interrupted
    return int(code) if code and code > 0 else 1
