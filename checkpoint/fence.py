"""Who may commit: the newest run that claimed the store, and nobody else.

A claim raises the term. A commit checks, under the store's lock, that the term is still its own; so a
generation that was given up for dead cannot commit behind the back of its successor.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from holdfast.checkpoint.errors import CheckpointError, StaleGeneration
from holdfast.checkpoint.folder import FENCE, MANIFEST, slots
from holdfast.checkpoint.store import Store

LOCK = "fence"


@dataclass(frozen=True, slots=True)
class Fence:
    """The newest claim on a store."""

    term: int
    generation: int
    job: str


def read(store: Store) -> Fence | None:
    """The newest claim, None for a store that nobody claimed. Raises CheckpointError if unreadable."""
    try:
        return Fence(**json.loads(store.read(FENCE)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        raise CheckpointError(f"{FENCE} in {store.url} is not readable; remove it to start over") from None


def claim(store: Store, job: str, generation: int) -> Fence:
    """Take the store over and sweep what older claims left half done.

    Raises StaleGeneration when a newer generation of the same job owns it, OSError when it is not writable.
    """
    store.make_folder("")
    with store.exclusive(LOCK):
        last = read(store)
        if last is not None and job and last.job == job and last.generation > generation:
            raise StaleGeneration(
                f"generation {generation} of job {job} may not use {store.url}: "
                f"generation {last.generation} has taken over"
            )
        # A lost fence must not let a term come back that names committed checkpoints.
        newest = max((slot.term for slot, _ in slots(store)), default=0)
        mine = Fence(max(newest, last.term if last else 0) + 1, generation, job)
        store.replace(FENCE, json.dumps(asdict(mine)).encode())
        sweep(store, mine)
    return mine


def require(store: Store, mine: Fence) -> None:
    """Raise StaleGeneration unless `mine` is the newest claim. Call with the lock held."""
    last = read(store)
    if last != mine:
        owner = f"generation {last.generation}" if last and last.job == mine.job else "another run"
        raise StaleGeneration(f"{owner} has taken over {store.url}")


def sweep(store: Store, mine: Fence) -> list[str]:
    """Remove what runs before `mine` began and did not commit; the names removed. Call with the lock held."""
    removed = []
    for slot, is_attempt in list(slots(store)):
        name = slot.attempt if is_attempt else slot.folder
        if slot.term < mine.term and (is_attempt or MANIFEST not in store.list(name)):
            store.remove(name)
            removed.append(name)
    return removed
