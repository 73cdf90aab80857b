"""Progress of a job whose program numbers no steps: what its attempts did, what they saved, and what they printed.

The hooks count such a program's steps from 0 in every attempt, wherever it resumed. The controller adds them up over
all attempts: a step's number is then how many were done, not where the program is. Where a checkpoint or a printed
number says more, that is remembered. Pure: instants are passed in.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.controller.state.former_names import current

FEW_STEPS = 5
"""An attempt of at most so many steps counts as ended at its start."""
STARTUP_S = 300.0
"""An attempt without a step that lasted longer than this had left its start-up."""
ALIKE = 0.1
"""Attempts whose lengths differ by less than this share are equally long."""
REPORTED_FROM = 3
"""Equally long attempts in a row that make a pattern; reported again whenever their number has doubled."""
_KEPT = 12
_BASES = 8


@dataclass(frozen=True, slots=True)
class RestartAttempt:
    """A attempt of the job that ended by a fault."""

    generation: int
    signature: str
    """Of the fault that ended it."""
    steps: int
    seconds: float
    """From its launch to the fault."""
    saves: int
    """Checkpoint files that it was seen to finish."""


@dataclass(slots=True)
class Progress:
    counted: bool = False
    """Are the steps counted by hooks, and not numbered by the program?"""
    bases: list[list[int]] = field(default_factory=list)
    """[generation, steps done before it] of the newest generations that began anew at 0."""
    launched_at: float = 0.0
    """Wall time of the running generation's launch."""
    saves: int = 0
    """Checkpoint files that the running attempt was seen to finish."""
    marks: int = 0
    """How often the running attempt printed a greater number of a step than before."""
    best_mark: int = -1
    """The greatest that any attempt printed."""
    best_saved: int = -1
    """The greatest number of a step in the name of a checkpoint file."""
    advanced: bool = False
    """Did the running attempt finish a checkpoint, or print a greater number than any before?"""
    reported: str = ""
    """What its checkpoints, else its log, said last."""
    stillborn: int = 0
    """Attempts in a row that the program itself ended before its first step, whatever the error."""
    idle: int = 0
    """Attempts in a row of which none got further than one before it, whatever ended them; the first one counts."""
    longest: int = 0
    """The most steps of one of those."""
    attempts: list[RestartAttempt] = field(default_factory=list)
    alike: int = 0
    """How many of the newest were equally long and ended alike."""

    def base(self, generation: int) -> int:
        """What is added to a counted step of this generation."""
        return next((base for known, base in reversed(self.bases) if known == generation), 0)

    def launch(self, generation: int, done: int, wall: float) -> None:
        """A generation begins after `done` steps of all attempts before it."""
        if self.counted:
            self.bases = [*self.bases, [generation, done]][-_BASES:]
        self.launched_at, self.saves, self.marks, self.advanced = wall, 0, 0, False

    def saw(self, source: str, number: int, count: int, text: str) -> None:
        """The running attempt finished `count` checkpoint files ("checkpoint"), or printed numbers ("log")."""
        if source == "checkpoint":
            self.saves = max(self.saves, count)
            # A name without a number is believed: the file's content is not read.
            self.advanced = self.advanced or number < 0 or number > self.best_saved
            self.best_saved = max(self.best_saved, number)
            self.reported = f"checkpoint {text}"
            return
        self.marks = max(self.marks, count)
        if number > self.best_mark:
            self.best_mark, self.advanced = number, True
        if not self.saves:
            self.reported = f"its log: {text}"

    def end(self, generation: int, signature: str, steps: int, wall: float) -> RestartAttempt:
        """The running attempt ended by a fault."""
        attempt = RestartAttempt(generation, signature, steps, max(0.0, wall - self.launched_at), self.saves)
        self.alike = self.alike + 1 if self.attempts and _alike(self.attempts[-1], attempt) else 1
        self.attempts = [*self.attempts, attempt][-_KEPT:]
        return attempt

    def ended_at_its_start(self, attempt: RestartAttempt, by_steps: bool = False) -> bool:
        """Did this attempt, just ended, get no further than its start? `by_steps`: what it saved and printed is no
        progress, for it was made of NaN."""
        if by_steps:
            return attempt.steps <= FEW_STEPS
        if self.advanced:
            return False
        if not attempt.steps and not self.marks:
            return self.counted or attempt.seconds <= STARTUP_S
        return max(attempt.steps, self.marks) <= FEW_STEPS

    def count_idle(self, attempt: RestartAttempt, by_steps: bool, is_newer: bool) -> None:
        """Did this attempt, just ended, get further: more steps, a newer checkpoint, or minutes of work? `is_newer`: it
        did a step that no attempt did before, by the program's own numbers. `by_steps`: see `ended_at_its_start`."""
        is_longer = self.counted and attempt.steps > self.longest
        is_further = is_newer or is_longer or attempt.seconds > STARTUP_S or (self.advanced and not by_steps)
        self.idle = 1 if is_further else self.idle + 1
        self.longest = attempt.steps if is_further else max(self.longest, attempt.steps)

    def is_longer_or_shorter(self) -> bool:
        """Was the newest attempt another length than the one before it, of those that went further than their start?"""
        newest = self.attempts[-1]
        before = self.attempts[-2].steps if len(self.attempts) > 1 else 0
        return newest.steps > 0 and not _near(newest.steps, before)

    def pattern(self) -> list[RestartAttempt]:
        """The newest attempts in a row that ended alike after the same time or number of steps; [] when that is nothing
        to report now."""
        times, rest = divmod(self.alike, REPORTED_FROM)
        if rest or times.bit_count() != 1:
            return []
        newest = self.attempts[-1]
        is_long = newest.steps > FEW_STEPS or newest.seconds > STARTUP_S or newest.saves > 0
        return self.attempts[-self.alike :] if is_long else []

    def to_doc(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_doc(cls, doc: dict[str, Any]) -> "Progress":
        doc = current(doc)
        return cls(**{**doc, "attempts": [RestartAttempt(**one) for one in doc.get("attempts", ())]})


def pattern_text(attempts: list[RestartAttempt], alike: int, cause: str) -> str:
    """How equally long attempts are reported."""
    steps, seconds = [attempt.steps for attempt in attempts], [attempt.seconds for attempt in attempts]
    length = f"{_range(steps, 0)} steps" if min(steps) else f"{_range(seconds, 0)} s"
    saved = sum(attempt.saves > 0 for attempt in attempts)
    if saved == len(attempts):
        gain = "each of them finished a checkpoint, so the job may make progress"
    elif saved:
        gain = f"{saved} of them finished a checkpoint"
    else:
        gain = "none of them finished a checkpoint: the job may repeat the same steps"
    return (
        f"the last {alike} restart attempts ended alike after {length} ({_range(seconds, 1)} s each): {cause}; {gain}. "
        "Look for a leak, for a regular end (a preemption, a time limit), "
        "or for a bad record in the data at that place"
    )


def _range(values: list[int] | list[float], digits: int) -> str:
    low, high = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _alike(one: RestartAttempt, other: RestartAttempt) -> bool:
    if one.signature != other.signature:
        return False
    if one.steps and other.steps and _near(one.steps, other.steps):
        return True
    return _near(one.seconds, other.seconds)


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= ALIKE * max(one, other)
