"""Where a job's time went: every second is productive, queued or belongs to a named loss, and all of them add up to
its wall time, since each interval is booked once, from where the last one ended.

Goodput is the productive share of the time in which the job had nodes or could have had them but for a fault: time in
the queue is no loss, and it is left out.

A step counts as productive when it can no longer be lost: when a checkpoint in the store has it. Until then it is
`unsaved`. For a job that reports no checkpoints nothing is `unsaved`: its steps are productive until done again.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from holdfast.controller.state.former_names import current

_KEPT = 200_000  # newest steps whose worth is remembered
_USUAL = 1.1  # of the median: what a step takes beyond it is a straggler's
_PAUSE = 5.0  # times the median: a step that takes longer, after one that did not, had a pause in it
HOUR = 3600.0
DAY = 86400.0
_SAMPLE = 15.0


class Account(StrEnum):
    QUEUED = "queued"
    """Waiting for nodes without any, from submission or from the end of the last worker after a preemption, until the
    next launch begins. A job that still holds nodes and waits for another one is in `evict`."""
    STARTING = "starting"
    """Placing and starting processes: at first, and again after each fault."""
    TRAINING = "unsaved"
    """Steps that a fault could still take away, and the one under way."""
    PRODUCTIVE = "productive"
    DETECT = "detect"
    """From a fault to the decision what to do."""
    DIAGNOSE = "diagnose"
    EVICT = "evict"
    """Ending what is left of a generation, waiting for another node."""
    RESTORE = "restore"
    """Reading state, until the first step has begun."""
    RECOMPUTE = "recompute"
    """Steps, and parts of one, that were lost and done again."""
    CHECKPOINT = "checkpoint"
    """Training that stood still for a snapshot or a checkpoint."""
    STRAGGLING = "straggling"
    """What steps took beyond the usual."""
    OTHER = "other"
    """Phases that the program itself named (evaluation, compilation), and pauses between steps of one that names
    none: an evaluation is not a straggler."""


LOSSES = tuple(a for a in Account if a not in (Account.QUEUED, Account.TRAINING, Account.PRODUCTIVE))


@dataclass(slots=True)
class Goodput:
    began: float = math.nan
    """Wall time of submission; NaN before."""
    at: float = math.nan
    """Wall time up to which all is booked."""
    account: Account = Account.STARTING
    """Where time goes now."""
    booked: dict[Account, float] = field(default_factory=lambda: dict.fromkeys(Account, 0.0))
    unsaved: dict[int, float] = field(default_factory=dict)
    """Step -> its useful seconds, of those that could still be lost."""
    kept: dict[int, float] = field(default_factory=dict)
    """The same of productive ones, the newest."""
    safe: int = -1
    """Newest step that cannot be lost."""
    reports: bool = False
    """Does the job report its checkpoints?"""
    ended: bool = False
    aside: bool = False
    """Was the program in a phase of its own since the last step?"""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    samples: deque[tuple[float, float, float]] = field(default_factory=deque)
    """Of the last day: (wall, seconds of productive and unsaved steps, seconds queued)."""

    def begin(self, wall: float) -> None:
        self.began = self.at = wall

    # --- what happens -------------------------------------------------------------------------------------------

    def switch(self, account: Account, wall: float) -> None:
        """From now on time goes elsewhere."""
        self._book(self.account, wall)
        self.account = account

    def fault(self, since: float, wall: float, account: Account) -> None:
        """Training had stopped at `since`, which was found at `wall`. A step that was cut off is lost."""
        if self.account is Account.TRAINING:
            self._book(Account.RECOMPUTE, min(since, wall))
            self._book(Account.DETECT, wall)
        self.switch(account, wall)

    def step(self, number: int, seconds: float, end: float, now: float) -> None:
        """A step was finished at `end` (its worker's clock) after `seconds`; it counts once, even if it is repeated."""
        if self.ended:
            return
        end = min(max(end, self.at), now)
        own = min(seconds, end - self.at)
        before = Account.CHECKPOINT if self.account is Account.TRAINING else self.account
        if before is Account.CHECKPOINT and self.aside:
            before = Account.OTHER
        self._book(before, end - own)
        median = sorted(self.recent)[len(self.recent) // 2] if len(self.recent) >= 8 else math.inf
        # Two long steps in a row are no pause but a straggler.
        paused = self.aside or (seconds >= _PAUSE * median > self.recent[-1])
        self.aside = False
        self.recent.append(seconds)
        useful = min(own, _USUAL * median)
        self._book(Account.OTHER if paused else Account.STRAGGLING, end - useful)
        self.at, self.account = end, Account.TRAINING
        self._take_back(number)
        self.unsaved[number] = useful
        self.booked[Account.TRAINING] += useful
        if not self.reports or number <= self.safe:
            self._secure(number)
        self._sample(end)

    def resumed(self, number: int) -> None:
        """A new generation begins with this step: what was not saved from it on is lost, and what was, if it went back
        further than it had to."""
        for lost in [n for n in self.unsaved if n >= number]:
            self._take_back(lost)
        if number <= self.safe:
            self.safe = number - 1
            for lost in [n for n in self.kept if n >= number]:
                self._take_back(lost)

    def saved(self, number: int) -> None:
        """The store has a checkpoint with this step and all before it."""
        self.reports = True
        if number > self.safe:
            self.safe = number
            for step in [n for n in self.unsaved if n <= number]:
                self._secure(step)

    def end(self, wall: float, finished: bool) -> None:
        """The job is over. All steps of a finished one are productive."""
        if self.ended:
            return
        self._book(self.account, wall)
        self.ended = True
        if finished:
            self.booked[Account.PRODUCTIVE] += self.booked[Account.TRAINING]
            self.booked[Account.TRAINING] = 0.0

    # --- what is known ------------------------------------------------------------------------------------------

    def totals(self, wall: float) -> dict[Account, float]:
        """Seconds by account up to `wall`: their sum is the job's wall time."""
        totals = dict(self.booked)
        if not self.ended and not math.isnan(self.at):
            totals[self.account] += max(0.0, wall - self.at)
        return totals

    def wall(self, wall: float) -> float:
        """Seconds since the job was submitted; of one that is over, until its end."""
        if math.isnan(self.began):
            return 0.0
        return (self.at if self.ended else max(wall, self.at)) - self.began

    def ratio(self, wall: float) -> float | None:
        """Productive share of the time outside of the queue, 0 to 1; None before the first step."""
        total = self.wall(wall) - self.totals(wall)[Account.QUEUED]
        if total <= 0 or not (self.kept or self.unsaved or self.booked[Account.PRODUCTIVE] > 0):
            return None
        return min(1.0, self.booked[Account.PRODUCTIVE] / total)

    def recent_ratio(self, wall: float, window: float) -> float | None:
        """Share of the last `window` seconds, at most a day, in steps that count, saved by now or not, without the time
        in the queue; None before the first step. Of the time before the controller's start only what was recalled."""
        if not self.samples:
            return None
        start = wall - window
        # The newest sample before the window: there is none while no step ends.
        i = bisect_left(self.samples, start, key=lambda sample: sample[0]) - 1
        at, done, queued = self.samples[max(i, 0)]
        asked = wall - max(at, start)
        total = asked - min(asked, self.totals(wall)[Account.QUEUED] - queued)
        return min(1.0, max(0.0, self._done() - done) / total) if total > 0 else None

    # --- inside -------------------------------------------------------------------------------------------------

    def _book(self, account: Account, until: float) -> None:
        if until > self.at:
            self.booked[account] += until - self.at
            self.at = until

    def _secure(self, number: int) -> None:
        worth = self.kept[number] = self.unsaved.pop(number)
        self.booked[Account.TRAINING] -= worth
        self.booked[Account.PRODUCTIVE] += worth
        if len(self.kept) > _KEPT:
            del self.kept[next(iter(self.kept))]

    def _take_back(self, number: int) -> None:
        """What was done of this step before is lost, if it was done."""
        for steps, account in ((self.unsaved, Account.TRAINING), (self.kept, Account.PRODUCTIVE)):
            worth = steps.pop(number, 0.0)
            self.booked[account] -= worth
            self.booked[Account.RECOMPUTE] += worth

    def _done(self) -> float:
        return self.booked[Account.PRODUCTIVE] + self.booked[Account.TRAINING]

    def recall(self, samples: Iterable[tuple[float, float, float]]) -> None:
        """Samples of the time before the controller's start, oldest first: (wall, useful, queued)."""
        first = self.samples[0][0] if self.samples else math.inf
        known = [sample for sample in samples if sample[0] < first]
        self.samples.extendleft(reversed(known))

    def _sample(self, wall: float) -> None:
        if not self.samples or wall - self.samples[-1][0] >= _SAMPLE:
            self.samples.append((wall, self._done(), self.booked[Account.QUEUED]))
        while self.samples[0][0] < wall - DAY and len(self.samples) > 1:
            self.samples.popleft()

    # --- for the journal ----------------------------------------------------------------------------------------

    def to_doc(self) -> dict[str, Any]:
        return {
            "began": self.began,
            "at": self.at,
            "account": self.account.value,
            "booked": {account.value: seconds for account, seconds in self.booked.items()},
            "unsaved": [[n, worth] for n, worth in self.unsaved.items()],
            "safe": self.safe,
            "reports": self.reports,
            "ended": self.ended,
        }

    @classmethod
    def from_doc(cls, doc: dict[str, Any]) -> "Goodput":
        doc = current(doc)
        booked = {account: float(doc["booked"].get(account.value, 0.0)) for account in Account}
        unsaved = {int(n): float(worth) for n, worth in doc["unsaved"]}
        return cls(
            began=float(doc["began"]), at=float(doc["at"]), account=Account(doc["account"]), booked=booked,
            unsaved=unsaved, safe=int(doc["safe"]), reports=bool(doc["reports"]), ended=bool(doc["ended"]),
        )  # fmt: skip
