"""A recording run again: the same events at the same instants must lead to the same decisions."""

from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.errors import HoldfastError
from holdfast.controller.brain.cluster_brain import ClusterBrain
from holdfast.controller.journal.recording import REFUSED, Start, Told, compared, did, read
from holdfast.controller.state.model import Incident


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the decisions part: the line, and what was and would now be done; empty where there is nothing more."""

    line: int
    event: str
    then: str
    now: str


@dataclass(slots=True)
class Replay:
    lives: int = 0
    events: int = 0
    decisions: int = 0
    difference: Difference | None = None
    incidents: list[Incident] = field(default_factory=list)
    then: dict[str, int] = field(default_factory=dict)
    """Incidents that were opened then, by id, and the lines of the recording in which they were."""
    now: dict[str, int] = field(default_factory=dict)
    """Those that are opened now."""

    @property
    def changed(self) -> list[str]:
        """What opened no incident, another one, or one at another line: verdicts that changed."""
        ids = dict.fromkeys([*self.then, *self.now])
        return [one for one in ids if self.then.get(one) != self.now.get(one)]


def replay(path: Path, through: bool = False) -> Replay:
    """Run it until its end, or until the decisions part; `through`: to its end all the same.

    UsageError when it is no recording.
    """
    found = Replay()
    brain: ClusterBrain | None = None
    version = 0
    for one in read(path):
        if isinstance(one, Start):
            brain, version = ClusterBrain(one.boot, one.options), one.version
            brain.restore(one.entities, one.steps, one.at)
            found.lives += 1
            continue
        if brain is None:
            continue
        now = decide(brain, one)
        found.events += 1
        found.decisions += len(one.did)
        found.incidents = list(brain.c.book.incidents.values())
        for opened, lines in ((found.then, one.did), (found.now, now)):
            for name in filter(None, map(_incident, lines)):
                opened.setdefault(name, one.line)
        then, after = compared(one.did, version), compared(now, version)
        if then != after:
            found.difference = found.difference or _difference(one, then, after)
            if not through:
                break
    return found


def decide(brain: ClusterBrain, told: Told) -> list[str]:
    try:
        return did(brain.handle(told.event, told.at))
    except HoldfastError:
        return [REFUSED]


def _incident(line: str) -> str:
    """The id in a line that records an incident; empty for other lines."""
    words = line.split(" ")
    return words[2] if words[:2] == ["record", "incident"] and len(words) > 2 else ""


def _difference(told: Told, did_then: list[str], did_now: list[str]) -> Difference:
    length = max(len(did_then), len(did_now))
    then, after = ([*lines, *[""] * (length - len(lines))] for lines in (did_then, did_now))
    first = next(i for i in range(length) if then[i] != after[i])
    return Difference(told.line, type(told.event).__name__, then[first], after[first])
