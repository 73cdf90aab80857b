"""Which checkpoints stay, and how the others go."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.checkpoint.stores.folder import PROTECTED, TRASH, Slot, committed
from holdfast.checkpoint.stores.store import Store


@dataclass(frozen=True, slots=True)
class Retention:
    """What to keep: the newest ones, every so many steps one for good, and whatever is protected."""

    last: int = 3
    """Newest ones; at least one stays."""
    every: int = 0
    """Those after a multiple of so many steps; 0: none."""

    def expired(self, found: Iterable[tuple[Slot, bool]]) -> list[Slot]:
        """What has to go, oldest first, of checkpoints and whether each is protected. Pure.

        Of several of one step only the newest term counts for `every`.
        """
        newest_first = sorted(found, key=lambda one: one[0].newness, reverse=True)
        gone, seen = [], set()
        for place, (slot, is_protected) in enumerate(newest_first):
            is_mark = bool(self.every) and slot.step % self.every == 0 and slot.step not in seen
            seen.add(slot.step)
            if place >= max(self.last, 1) and not is_mark and not is_protected:
                gone.append(slot)
        return gone[::-1]


def is_protected(store: Store, slot: Slot) -> bool:
    return PROTECTED in store.list(slot.folder)


def protect(store: Store, slot: Slot, wanted: bool = True) -> None:
    """Keep a checkpoint whatever the retention says, or no longer."""
    path = f"{slot.folder}/{PROTECTED}"
    if wanted:
        store.replace(path, b"")
    else:
        store.remove(path)


def spare(store: Store, term: int) -> Slot | None:
    """Protect the newest checkpoint of terms before this one; which, or None if there is none, or it was protected.

    Raises OSError.
    """
    newest = next((slot for slot, _ in committed(store) if slot.term < term), None)
    if newest is None or is_protected(store, newest):
        return None
    protect(store, newest)
    return newest


def retain(store: Store, retention: Retention) -> list[Slot]:
    """Remove what has expired; those removed, oldest first. Checkpoints without a valid manifest do not count.

    Raises OSError.
    """
    gone = retention.expired((slot, is_protected(store, slot)) for slot, _ in committed(store))
    for slot in gone:
        discard(store, slot)
    return gone


def discard(store: Store, slot: Slot) -> None:
    """Remove one checkpoint. From one instant to the next it is not there, however long removing takes."""
    aside = f"{TRASH}{uuid.uuid4().hex}"
    store.rename(slot.folder, aside)
    store.remove(aside)
