"""Who leaves a cache when something else needs the room. Pure.

A policy is a class here and a line of `POLICIES`.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, Protocol

from holdfast.plan.cache.uses import K, Uses


class Policy(Protocol[K]):
    """Chooses victims. `now` is the moment of the access that needs the room."""

    def entered(self, key: K, now: int) -> None:
        """`key` came in."""

    def used(self, key: K, now: int) -> None:
        """`key` was needed, whether it was there or came in for it."""

    def victim(self, candidates: Collection[K], now: int) -> K:
        """One of `candidates`, of which there is at least one."""


class Belady(Generic[K]):
    """Who is needed last leaves first: the fewest fetches that are possible (Belady, IBM Systems Journal 1966).

    Ties go to the one that came first among the candidates, so that all ranks decide alike.
    """

    def __init__(self, uses: Uses[K]) -> None:
        self._uses = uses

    def entered(self, key: K, now: int) -> None:
        pass

    def used(self, key: K, now: int) -> None:
        pass

    def victim(self, candidates: Collection[K], now: int) -> K:
        return max(candidates, key=lambda key: self._uses.next(key, now))


class LeastRecentlyUsed(Generic[K]):
    """Who was not needed for longest leaves first."""

    def __init__(self, uses: Uses[K] | None = None) -> None:
        self._last: dict[K, int] = {}

    def entered(self, key: K, now: int) -> None:
        self._last[key] = now

    def used(self, key: K, now: int) -> None:
        self._last[key] = now

    def victim(self, candidates: Collection[K], now: int) -> K:
        return min(candidates, key=lambda key: self._last[key])


class FirstInFirstOut(Generic[K]):
    """Who came first leaves first."""

    def __init__(self, uses: Uses[K] | None = None) -> None:
        self._since: dict[K, int] = {}
        self._count = 0

    def entered(self, key: K, now: int) -> None:
        # A running number, since several may come in for one access.
        self._count += 1
        self._since[key] = self._count

    def used(self, key: K, now: int) -> None:
        pass

    def victim(self, candidates: Collection[K], now: int) -> K:
        return min(candidates, key=lambda key: self._since[key])


POLICIES: Mapping[str, Callable[[Uses[Any]], Policy[Any]]] = {
    "belady": Belady,
    "lru": LeastRecentlyUsed,
    "fifo": FirstInFirstOut,
}
"""By the name that settings use."""
