"""What `isolation` keeps of each part that may be bad, and how it puts a round together."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

Pair = tuple[str, str]

TRIES = 2
"""Passes in a row of one pair after which a part is good."""


class PairKind(StrEnum):
    """How a pair was tested."""

    NEAR = "near"
    PROBE = "probe"
    """Across switches, with no other pair across at either of the two at the same time."""
    CROWD = "crowd"
    """Across switches, with others."""


@dataclass(slots=True)
class IsolationPart:
    is_good: bool = False
    is_bad: bool = False
    streak: int = 0  # passes in a row of one pair: a fault may show in its second attempt only
    strikes: int = 0  # failures in a row with all others known to be good
    fails: int = 0  # of those, all
    row: int = 0  # failures in a row, whichever the others were
    failures: list[Pair] = field(default_factory=list)
    last: Pair | None = None  # the pair of the last test, if it passed
    passes: int = 0

    @property
    def is_open(self) -> bool:
        return not self.is_good and not self.is_bad

    @property
    def is_passed(self) -> bool:
        """`certify` may meet others in between: then twice as many passes will do, if there was no failure."""
        return self.streak >= TRIES or (not self.failures and self.passes >= 2 * TRIES)

    @property
    def is_suspect(self) -> bool:
        return self.is_open and bool(self.failures)

    @property
    def is_mixed(self) -> bool:
        """Has it failed and passed, so that only the number of both can tell why?"""
        return self.is_open and bool(self.failures) and self.passes > 0

    @property
    def rank(self) -> tuple[int, int]:
        return -self.fails, -len(self.failures)

    def met(self) -> set[str]:
        return {node for pair in self.failures for node in pair}

    def note(self, pair: Pair, passed: bool, is_counted: bool) -> None:
        if passed:
            is_again = self.last is not None and set(self.last) == set(pair)
            self.streak, self.strikes, self.row, self.last = self.streak + 1 if is_again else 1, 0, 0, pair
            self.passes += 1
        elif self.is_open:
            self.streak, self.row, self.last = 0, self.row + 1, None
            self.failures.append(pair)
            if is_counted:
                self.strikes, self.fails = self.strikes + 1, self.fails + 1

    def is_broad(self) -> bool:
        """Do the failures need more than one node to explain them?"""
        return bool(self.failures) and not set.intersection(*(set(pair) for pair in self.failures))


class IsolationPlan:
    """The pairs of one round."""

    def __init__(self, draw: random.Random, way_of: Callable[[Pair], Pair | None]) -> None:
        self._random, self._way_of = draw, way_of
        self.pairs: dict[Pair, PairKind] = {}
        self.busy: set[str] = set()
        self._alone: set[str] = set()  # switches with a probe
        self._shared: set[str] = set()  # switches that a crowd crosses

    def is_free(self, way: Pair, kind: PairKind) -> bool:
        """May one more go this way?"""
        return self._alone.isdisjoint(way) and (kind is PairKind.CROWD or self._shared.isdisjoint(way))

    def shuffled(self, names: Iterable[str]) -> list[str]:
        found = sorted(names)  # a set's order is not the same in every process
        self._random.shuffle(found)
        return found

    def add(self, pair: Pair, kind: PairKind) -> None:
        self.pairs[pair] = kind
        self.busy.update(pair)
        if kind is not PairKind.NEAR:
            (self._alone if kind is PairKind.PROBE else self._shared).update(self._way_of(pair) or ())

    def pair(self, name: str, partner: str, kind: PairKind) -> bool:
        if name == partner or name in self.busy or partner in self.busy:
            return False
        self.add((name, partner), kind)
        return True

    def meet(self, name: str, part: IsolationPart, partners: Iterable[str], kind: PairKind) -> str:
        """A suspect meets one of these: the same again after a pass, which may be in a later round, else a new one.
        Which one; empty: none is free."""
        known = [other for other in partners if other != name]
        again = partner_of(part.last, name)
        free = [other for other in ([again] if again in known else known) if other not in self.busy]
        new = [other for other in free if other not in part.met()] or free
        chosen = next(iter(new), "")
        return chosen if chosen and self.pair(name, chosen, kind) else ""


def partner_of(pair: Pair | None, name: str) -> str:
    """The other one of a pair; empty of none."""
    return "" if pair is None else pair[1] if pair[0] == name else pair[0]
