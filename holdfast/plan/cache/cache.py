"""What a cache holds, and the copies that an access costs. Pure: the caller does the copies.

Every byte that is held is counted in an `Arena`, beside whatever else is counted there.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic

from holdfast.plan.cache.arena import Arena, ArenaFullError
from holdfast.plan.cache.policy import Policy
from holdfast.plan.cache.uses import K, Trace
from holdfast.plan.plan import Op


@dataclass(frozen=True, slots=True)
class Copy(Generic[K]):
    """One copy to do: `Op.FETCH` brings `key` in, `Op.EVICT` takes it out. In order: room is made before it is used.

    `size` in bytes; 0 where nothing needs to be copied (what was not written since it was fetched is only dropped,
    and what is created in the cache is not fetched).
    """

    op: Op
    key: K
    size: int


class Cache(Generic[K]):
    """Holds keys of `sizes` bytes in `arena`, counted there as `kind`."""

    def __init__(self, sizes: Mapping[K, int], arena: Arena, policy: Policy[K], *, kind: str = "cache") -> None:
        self._sizes = dict(sizes)
        self._arena = arena
        self._policy = policy
        self._kind = kind
        self._held: dict[K, None] = {}  # in the order of arrival
        self._written: set[K] = set()
        self.fetched = 0
        """Bytes that came in so far."""
        self.evicted = 0
        """Bytes that went out so far."""

    @property
    def held(self) -> Collection[K]:
        """What is in, in the order of arrival."""
        return self._held.keys()

    def need(
        self,
        keys: Iterable[K],
        now: int,
        *,
        written: bool = False,
        created: Collection[K] = (),
        limit: int | None = None,
    ) -> list[Copy[K]]:
        """The copies that must be done before all of `keys` can be used at the moment `now`.

        `written`: the use changes them, so that leaving costs a copy. `created`: they exist nowhere yet, and are not
        fetched. `limit`: the most bytes that this cache may hold from here on, besides what the arena's capacity
        allows.

        Raises:
            ArenaFullError: `keys` do not fit together, even with everything else gone. The cache is as it was.
        """
        wanted = dict.fromkeys(keys)
        self._check(wanted, limit)
        copies: list[Copy[K]] = []
        for key in wanted:
            if key not in self._held:
                copies += self._make_room(self._sizes[key], wanted, now, limit)
                copies.append(self._bring(key, now, is_new=key in created))
            self._policy.used(key, now)
        # A limit that fell below what is held.
        copies += self._make_room(0, wanted, now, limit)
        if written:
            self._written.update(wanted)
        return copies

    def grow(self, key: K, size: int, now: int, *, kept: Collection[K] = ()) -> list[Copy[K]]:
        """The copies that must be done before `key`, which is being made in the cache, has `size` bytes more.

        For what nobody knows the size of before it is there. `kept` stay in, as `key` does.

        Raises:
            ArenaFullError: They do not fit, even with everything else gone. The cache is as it was.
        """
        stay = {key, *kept}
        most = self._arena.free + sum(self._sizes[other] for other in self._held if other not in stay)
        if size > most:
            raise ArenaFullError(
                f"{self._arena.name}: {size} bytes more of {self._kind} are made, and there is room for {int(most)}"
            )
        copies = self._make_room(size, stay, now, None)
        self._arena.take(self._kind, size)
        if key not in self._held:
            self._held[key] = None
            self._sizes[key] = 0
            self._policy.entered(key, now)
        self._sizes[key] += size
        self._written.add(key)
        return copies

    def forget(self, key: K) -> None:
        """What `key` holds is worthless now: it goes without a copy. Nothing if it is not in."""
        if key in self._held:
            del self._held[key]
            self._arena.release(self._kind, self._sizes[key])
        self._written.discard(key)

    def prefetch(self, keys: Iterable[K], now: int) -> list[Copy[K]]:
        """Fetches of those of `keys` that fit without taking anything out, in their order."""
        copies: list[Copy[K]] = []
        for key in dict.fromkeys(keys):
            if key not in self._held and self._sizes[key] <= self._arena.free:
                copies.append(self._bring(key, now, is_new=False))
        return copies

    def clear(self, size: int, now: int, kept: Collection[K] = ()) -> list[Copy[K]]:
        """The copies after which the arena has `size` bytes for something else. Nothing of `kept` leaves.

        Raises:
            ArenaFullError: All others together are not enough. The cache is as it was.
        """
        going = sum(self._sizes[key] for key in self._held if key not in kept)
        if size > self._arena.free + going:
            raise ArenaFullError(
                f"{self._arena.name}: {size} bytes are needed beside {self._kind}; {int(self._arena.free)} are free, "
                f"and {going} of {self._kind} can leave"
            )
        return self._make_room(size, kept, now, None)

    def drop(self, key: K) -> Copy[K]:
        """Takes `key` out: a copy of no bytes if it was not written."""
        del self._held[key]
        size = self._sizes[key]
        self._arena.release(self._kind, size)
        moved = size if key in self._written else 0
        self._written.discard(key)
        self.evicted += moved
        return Copy(Op.EVICT, key, moved)

    def _bring(self, key: K, now: int, *, is_new: bool) -> Copy[K]:
        size = self._sizes[key]
        self._arena.take(self._kind, size)
        self._held[key] = None
        self._policy.entered(key, now)
        moved = 0 if is_new else size
        if is_new:
            self._written.add(key)
        self.fetched += moved
        return Copy(Op.FETCH, key, moved)

    def _make_room(self, size: int, kept: Collection[K], now: int, limit: int | None) -> list[Copy[K]]:
        copies: list[Copy[K]] = []
        while size > self._room(limit):
            candidates = [key for key in self._held if key not in kept]
            copies.append(self.drop(self._policy.victim(candidates, now)))
        return copies

    def _room(self, limit: int | None) -> float:
        held = self._arena.used_by.get(self._kind, 0)
        return self._arena.free if limit is None else min(self._arena.free, limit - held)

    def _check(self, wanted: Collection[K], limit: int | None) -> None:
        needed = sum(self._sizes[key] for key in wanted)
        held = self._arena.used_by.get(self._kind, 0)
        most = self._arena.free + held
        if limit is not None:
            most = min(most, limit)
        if needed > most:
            raise ArenaFullError(
                f"{self._arena.name}: {len(wanted)} things of {self._kind} are needed at once, {needed} bytes together;"
                f" there is room for {int(most)}"
            )


def moved(trace: Trace[K], sizes: Mapping[K, int], capacity: int, policy: Policy[K], *, written: bool = True) -> int:
    """Bytes that a cache of `capacity` bytes copies, both ways, over all of `trace`, beginning empty.

    With `written`, every use changes what it uses, as chunks of a model in training are changed.
    """
    cache: Cache[K] = Cache(sizes, Arena("cache", capacity), policy)
    for now, keys in enumerate(trace.accesses):
        cache.need(keys, now, written=written)
    return cache.fetched + cache.evicted
