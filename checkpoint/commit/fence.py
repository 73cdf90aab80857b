"""Which run may commit: only the newest one that claimed the store. Without locks.

A claim is a file `claims/tNNNN.json`, created atomically: of several that want a term, one gets it. A run writes below
the folder `work-tNNNN` of its own term, and commits by renaming a folder out of there. A run that claims a newer term
takes that folder away and puts an empty *file* of the same name in its place. From then on the older run can neither
create anything below that name nor rename anything out of it, for a file has no children: not after a pause of hours
either, since the decision is the file system's and not a comparison made before the pause. Only then does the newer
run look for checkpoints; what the older one committed up to there is whole, and counts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import uuid
from dataclasses import asdict, dataclass

from holdfast.checkpoint.errors import CheckpointError, StaleGeneration
from holdfast.checkpoint.stores.folder import TRASH, slots
from holdfast.checkpoint.stores.store import Store

CLAIMS = "claims"
_CLAIM = re.compile(r"t(\d{4,})\.json")
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Fence:
    """A claim on a store."""

    term: int
    generation: int
    job: str
    token: str = ""
    """Distinguishes this run from every other."""

    @property
    def work(self) -> str:
        """The folder below which this run writes."""
        return work_folder(self.term)


def work_folder(term: int) -> str:
    return f"work-t{term:04d}"


def terms(store: Store) -> list[int]:
    """All terms that were ever claimed, oldest first."""
    return sorted(int(m[1]) for m in map(_CLAIM.fullmatch, store.list(CLAIMS)) if m)


def read(store: Store) -> Fence | None:
    """The newest claim, None for a store without a claim. Raises CheckpointError if unreadable, OSError."""
    found = terms(store)
    if not found:
        return None
    name = f"{CLAIMS}/t{found[-1]:04d}.json"
    try:
        return Fence(**json.loads(store.read(name)))
    except (ValueError, TypeError):
        raise CheckpointError(f"{name} in {store.url} is not readable; remove it to start over") from None


def claim(store: Store, job: str, generation: int) -> Fence:
    """Take the store over, shut older runs out, and sweep what they left half done.

    Raises StaleGeneration when a newer generation of the same job owns it, OSError when it is not writable.
    """
    store.make_folder(CLAIMS)
    for _ in range(_TRIES):
        last = read(store)
        if last is not None and job and last.job == job and last.generation > generation:
            raise StaleGeneration(
                f"generation {generation} of job {job} may not use {store.url}: "
                f"generation {last.generation} has taken over"
            )
        # Lost claims must not let a term come back that names committed checkpoints.
        newest = max((slot.term for slot in slots(store)), default=0)
        mine = Fence(max(newest, last.term if last else 0) + 1, generation, job, uuid.uuid4().hex)
        try:
            store.claim(f"{CLAIMS}/t{mine.term:04d}.json", json.dumps(asdict(mine)).encode())
        except FileExistsError:
            # Another run was quicker; or it was ours, and only the answer was lost.
            with contextlib.suppress(CheckpointError):
                if read(store) == mine:
                    break
            continue
        break
    else:
        raise OSError(f"{store.url} was claimed by other writers {_TRIES} times in a row")
    shut_out(store, mine.term)
    return mine


def require(store: Store, mine: Fence) -> None:
    """Raise StaleGeneration unless `mine` is the newest claim; OSError when there are no claims, not even mine."""
    last = read(store)
    if last is None:
        raise FileNotFoundError(errno.ENOENT, "the store lost its claims; is it mounted?", store.url)
    if last != mine:
        owner = f"generation {last.generation}" if last and last.job == mine.job else "another run"
        raise StaleGeneration(f"{owner} has taken over {store.url}")


def shut_out(store: Store, term: int) -> None:
    """End all terms before `term`, and remove what they wrote and did not commit."""
    names = set(store.list())
    older = {t for t in terms(store) if t < term}
    older |= {t for t in range(1, term) if f"{work_folder(t)}/" in names}
    for old in sorted(older):
        if work_folder(old) not in names:
            _bury(store, work_folder(old))
    for name in store.list():
        if name.startswith(TRASH):
            store.remove(name.rstrip("/"))


def _bury(store: Store, work: str) -> None:
    """Put a file where the folder `work` is or may come to be."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            if f"{work}/" in store.list():
                store.rename(work, f"{TRASH}{uuid.uuid4().hex}")
        try:
            store.claim(work, b"")
        except FileExistsError:
            if work in store.list():
                return
            continue  # its owner was still writing, and made the folder again
        return
    raise OSError(f"{store.url}: {work} is being written continuously")
