"""Counters of processes that come and go, added up. Pure."""

from collections.abc import Iterable


class ActivitySums:
    """Growth of counters of processes that come and go, added up: it never falls when one ends."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, ...]] = {}
        self._totals: list[float] = []
        self._began = False

    def add(
        self, values: dict[int, tuple[float, ...]], present: Iterable[int], whole: bool = True
    ) -> tuple[float, ...]:
        """Values by process, all of the same length, of those that were looked at; `present` are all there are.

        What a process has that came since the first call counts `whole`, or from then on.
        """
        for pid, now in values.items():
            if len(self._totals) < len(now):
                self._totals += [0.0] * (len(now) - len(self._totals))
            before = self._last.get(pid, tuple(0.0 for _ in now) if self._began and whole else now)
            for at, (old, new) in enumerate(zip(before, now, strict=True)):
                self._totals[at] += max(new - old, 0.0)
        there = set(present)
        self._last = {pid: last for pid, last in (self._last | values).items() if pid in there}
        self._began = True
        return tuple(self._totals)
