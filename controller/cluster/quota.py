"""How many alerts are kept of one node or subject within a minute, and of all together. Pure.

A loop in a node's programs may cause hundreds a second. The first few have all the information,
and the record of them must stay bounded.
"""

from collections import deque

from holdfast.base.bounds import MAX_ALERTS
from holdfast.controller.state.incidents import Finding
from holdfast.wire import types as t

WINDOW = 60.0
"""Seconds."""
AGAIN = 600.0
"""Seconds in which the same text about the same subject is not repeated."""
MAX_OF_ALL = 100 * MAX_ALERTS
_SOURCES = 10_000


class Quota:
    def __init__(self) -> None:
        self._taken: dict[str, deque[float]] = {}  # by source, when (mono); the source with the newest comes last
        self._said: dict[tuple[t.FindingKind, str, str], float] = {}
        self._of_all: deque[float] = deque(maxlen=MAX_OF_ALL)
        self.suppressed = 0
        """Alerts that were not taken."""

    def takes(self, finding: Finding, now: float) -> bool:
        """Is there room for one more from there? `now`: monotonic seconds."""
        if self._is_free(finding, now):
            return True
        self.suppressed += 1
        return False

    def _is_free(self, finding: Finding, now: float) -> bool:
        said = finding.kind, finding.subject, finding.text
        if now - self._said.get(said, -AGAIN) < AGAIN:
            return False
        source = finding.node or finding.subject
        taken = self._taken.pop(source, None) or deque(maxlen=MAX_ALERTS)
        self._taken[source] = taken
        while len(self._taken) > _SOURCES:
            self._taken.pop(next(iter(self._taken)))
        for times in (taken, self._of_all):
            if len(times) == times.maxlen and now - times[0] < WINDOW:
                return False
        taken.append(now)
        self._of_all.append(now)
        self._said.pop(said, None)
        self._said[said] = now
        while len(self._said) > _SOURCES:
            self._said.pop(next(iter(self._said)))
        return True


def suppressed_finding(finding: Finding, total: int) -> Finding:
    """That alerts of there are no longer kept one by one."""
    source = finding.node or finding.subject
    return Finding(
        kind=t.FindingKind.ALERTS_SUPPRESSED,
        severity=t.Severity.WARNING,
        subject=source,
        text=f"{source} causes more than {MAX_ALERTS} alerts a minute, or repeats the same one: "
        f"further alerts are only counted, for example: {finding.text[:200]}",
        since=finding.since,
        at=finding.at,
        node=finding.node,
        signature=t.FindingKind.ALERTS_SUPPRESSED.value,
        evidence={"kind": finding.kind.value, "suppressed_so_far": total},
    )
