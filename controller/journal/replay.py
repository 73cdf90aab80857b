"""A recording run again: the same events at the same instants must lead to the same decisions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.errors import HoldfastError
from holdfast.controller.brain.cluster_brain import ClusterBrain
from holdfast.controller.journal.changes import IncidentChange, IncidentTrace, RunComparison
from holdfast.controller.journal.recording import REFUSED, Reported, Start, compared, did, read
from holdfast.controller.state.events import Action
from holdfast.controller.state.incidents import Incident


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the decisions part: the line, and what was and would now be done; empty where there is nothing more."""

    line: int
    event: str
    then: str
    now: str


@dataclass(slots=True)
class Replay:
    runs: int = 0
    events: int = 0
    decisions: int = 0
    difference: Difference | None = None
    incidents: list[Incident] = field(default_factory=list)
    then: list[IncidentTrace] = field(default_factory=list)
    """Incidents that were opened then. Empty, as the next three, if the replay ended at the first difference."""
    now: list[IncidentTrace] = field(default_factory=list)
    """Incidents that are opened now."""
    changed: list[IncidentChange] = field(default_factory=list)
    aftermath: list[IncidentTrace] = field(default_factory=list)
    """Incidents of now about workers that ended because the recorded controller stopped them: not compared."""

    @property
    def is_same(self) -> bool:
        return self.difference is None and not self.changed


def replay(path: Path, through: bool = False, progress: Callable[[int], None] | None = None) -> Replay:
    """Run it until its end, or until the decisions part; `through`: to its end all the same. `progress` is given the
    number of events so far.

    UsageError when it is no recording.
    """
    found = Replay()
    runs: list[RunComparison] = []
    brain: ClusterBrain | None = None
    version = 0
    for one in read(path):
        if isinstance(one, Start):
            brain, version = ClusterBrain(one.boot, one.options), one.version
            brain.restore(one.entities, one.steps, one.at)
            if runs:
                runs[-1].finish(one.entities)
            runs.append(RunComparison(one))
            continue
        if brain is None:
            continue
        actions, now = decide(brain, one)
        found.events += 1
        if progress is not None:
            progress(found.events)
        found.decisions += len(one.did)
        found.incidents = list(brain.c.book.incidents.values())
        runs[-1].add(one, actions, now)
        then, after = compared(one.did, version), compared(now, version)
        if then != after:
            found.difference = found.difference or _difference(one, then, after)
            if not through:
                break
    found.runs = len(runs)
    if through or found.difference is None:
        for run in runs:
            run.finish()
            found.then += run.opened_then
            found.now += run.opened_now
            found.changed += run.changes()
            found.aftermath += run.aftermath.values()
    return found


def decide(brain: ClusterBrain, reported: Reported) -> tuple[list[Action], list[str]]:
    """What is decided now: the actions, and their lines."""
    try:
        actions = brain.handle(reported.event, reported.at)
    except HoldfastError:
        return [], [REFUSED]
    return actions, did(actions)


def _difference(reported: Reported, did_then: list[str], did_now: list[str]) -> Difference:
    length = max(len(did_then), len(did_now))
    then, after = ([*lines, *[""] * (length - len(lines))] for lines in (did_then, did_now))
    first = next(i for i in range(length) if then[i] != after[i])
    return Difference(reported.line, type(reported.event).__name__, then[first], after[first])
