"""Rules that one line can't decide: reported at so many matching lines in a row, after a line that was well.

A loss of NaN may be a batch without labels, a rank that has none, a metric before its first value. It is a fault where
the loss was a number before, and is none in line after line.
"""

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.agent.logs.rules import LogRule

K = TypeVar("K", bound=Hashable)
_LINE = re.compile(r"[\r\n]+")  # a progress bar writes its line again and again


@dataclass(slots=True)
class _State:
    was_well: bool = False
    in_row: int = 0


class Streaks(Generic[K]):
    """`look` gets all output of a worker, `key`, in order."""

    def __init__(self, rules: Iterable[LogRule]) -> None:
        self._rules = [rule for rule in rules if rule.lines > 1]
        self._states: dict[tuple[K, str], _State] = {}

    def look(self, key: K, text: str, found: list[tuple[str, LogRule]]) -> list[tuple[str, LogRule]]:
        """What counts of the lines of a block that matched a rule."""
        if not self._rules:
            return found
        counts = [(line, rule) for line, rule in found if rule.lines == 1]
        for rule in self._rules:
            state = self._states.setdefault((key, rule.name), _State())
            matches = any(one is rule for _, one in found)
            # What nearly every block is: well before, well now.
            if matches or ((state.in_row or not state.was_well) and any(n in text for n in rule.well_needles)):
                counts += [(line, rule) for line in _reported(rule, state, text)]
        return counts

    def forget(self, key: K) -> None:
        """The worker is gone."""
        for rule in self._rules:
            self._states.pop((key, rule.name), None)


def _reported(rule: LogRule, state: _State, text: str) -> list[str]:
    lines = []
    for line in _LINE.split(text):
        if rule.matches(line):
            state.in_row += state.was_well
            if state.in_row >= rule.lines:
                lines.append(line)
        elif any(needle in line for needle in rule.well_needles) and rule.well and rule.well.search(line):
            state.was_well, state.in_row = True, 0
    return lines
