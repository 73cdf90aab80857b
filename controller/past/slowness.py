"""How each candidate's slowness went from look to look, and since when it is there."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
_KEPT = 240
"""Points of a candidate: of more, every second one goes."""
_MISSED_S = 120.0
"""Without being named for so long, a candidate is well; when it comes again it is a new one."""
_MOST = 200
"""Candidates: of more, those that were not named for the longest time go."""


@dataclass(slots=True)
class _Course:
    since: float
    seen: float
    at: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    ratio: list[float | None] = field(default_factory=list)
    every: float = 0.0
    """Seconds between two points at least."""


class SlowHistory:
    """Of one job. `since` of a candidate: Unix seconds."""

    def __init__(self) -> None:
        self._courses: dict[tuple[int, int, str], _Course] = {}

    def see(self, culprits: Iterable[Mapping[str, Any]], began: float, at: float) -> None:
        """A look at the steps from `began` to `at` named these (`spans.Culprit`). Each gets its `since` by `add_to`."""
        self._courses = {key: one for key, one in self._courses.items() if at - one.seen <= _MISSED_S}
        for culprit in culprits:
            course = self._courses.setdefault(_key(culprit), _Course(began, at))
            course.seen = at
            if course.at and at - course.at[-1] < course.every:
                continue
            course.at.append(at)
            course.share.append(culprit["share"])
            course.ratio.append(culprit["ratio"])
            if len(course.at) > _KEPT:
                course.every = 1.5 * (course.at[-1] - course.at[0]) / _KEPT
                for column in (course.at, course.share, course.ratio):
                    del column[1:-1:2]
        for key in sorted(self._courses, key=lambda key: -self._courses[key].seen)[_MOST:]:
            del self._courses[key]

    def add_to(self, culprit: Json) -> None:
        """Put `since` and `history` into a `spans.Culprit`, where they are known."""
        course = self._courses.get(_key(culprit))
        if course is not None:
            culprit["since"] = course.since
            culprit["history"] = {"at": list(course.at), "share": list(course.share), "ratio": list(course.ratio)}


def _key(culprit: Mapping[str, Any]) -> tuple[int, int, str]:
    return culprit["rank"], culprit["peer"], culprit["kind"]
