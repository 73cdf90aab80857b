"""One attempt to make a checkpoint out of the snapshots of a step: what its workers' daemons leave for each other in
the store. They do not talk: the claim on the store and the step determine where to write and where to look.

    WORK/step-00000020.ATTEMPT/part-00003.safetensors   a worker's part
    WORK/step-00000020.ATTEMPT/part-00003.json          its entry for the manifest, or why there will be none; the
                                                        leader's only if it has to wait for another
    WORK/step-00000020.ATTEMPT.refused                  why the attempt was given up

When all entries are there, the leader's daemon writes the manifest and renames the folder. Every function may be
called again after a failure, and by a daemon that begins anew. All of them block.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.commit.fence import Fence, require
from holdfast.checkpoint.commit.retention import retain
from holdfast.checkpoint.commit.save import commit
from holdfast.checkpoint.daemon.messages import Leader
from holdfast.checkpoint.errors import CheckpointError, ManifestInvalid
from holdfast.checkpoint.format import parts
from holdfast.checkpoint.format.checksum import Buffer
from holdfast.checkpoint.format.manifest import Manifest, part_from_json, part_to_json
from holdfast.checkpoint.format.parts import Part, part_name
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.format.transfer import Share
from holdfast.checkpoint.format.worker_state import merged
from holdfast.checkpoint.stores.folder import Slot, read_manifest
from holdfast.checkpoint.stores.store import Store
from holdfast.plan.tiles import TensorShard


class AttemptRefused(CheckpointError):
    """This step will not become a checkpoint."""


@dataclass(frozen=True, slots=True)
class UploadAttempt:
    """The same for all daemons of a job."""

    fence: Fence
    step: int

    @property
    def id(self) -> str:
        return f"{self.fence.token}-s{self.step}"

    @property
    def folder(self) -> str:
        return f"{self.fence.work}/step-{self.step:08d}.{self.id[-20:]}"

    @property
    def refusal(self) -> str:
        return f"{self.folder}.refused"

    @property
    def slot(self) -> Slot:
        return Slot(self.step, self.fence.term)


def is_committed(store: Store, attempt: UploadAttempt) -> bool:
    """Whether it became a checkpoint. Raises Refused when it was given up, OSError."""
    try:
        if read_manifest(store, attempt.slot).attempt == attempt.id:
            return True
    except ManifestInvalid:
        pass  # most often: not yet there
    try:
        reason = store.read(attempt.refusal)
    except FileNotFoundError:
        return False
    raise AttemptRefused(reason.decode("utf-8", "replace"))


def has_ended(store: Store, attempt: UploadAttempt) -> bool:
    """Whether it became a checkpoint. Raises Refused when it was given up, StaleGeneration when it cannot any more."""
    try:
        if is_committed(store, attempt):
            return True
    except OSError:
        require(store, attempt.fence)
        raise
    require(store, attempt.fence)
    return False


def has_part(store: Store, attempt: UploadAttempt, worker: int) -> bool:
    """Whether this worker's entry is there. Raises Refused when the attempt was given up, OSError."""
    # In this order: what is neither here nor committed was never written.
    return _entry_name(worker) in store.list(attempt.folder) or is_committed(store, attempt)


def write_part(
    store: Store,
    attempt: UploadAttempt,
    worker: int,
    tensors: Mapping[str, GlobalTensor],
    shares: Sequence[tuple[str, TensorShard]],
    body: parts.Body,
    through: Callable[[Iterator[Buffer]], Iterator[Buffer]],
) -> Part | None:
    """Write a worker's part; None when it was written and entered before. The bytes go by way of `through`.

    It counts once `put_entry` has entered it. Raises Refused when the attempt was given up, StaleGeneration, OSError,
    and what `through` raises.
    """
    try:
        if has_part(store, attempt, worker):
            return None
        store.make_folder(attempt.folder)

        def write(pieces: Callable[[], Iterator[Buffer]]) -> None:
            store.create(f"{attempt.folder}/{part_name(worker)}", lambda: through(pieces()))

        mine = [Share(name, shard, worker, shard.count * tensors[name].item_bytes) for name, shard in shares]
        return parts.write_part(write, worker, tensors, mine, body, {"format": "pt", "attempt": attempt.id})
    except OSError:
        if _was_committed(store, attempt):
            return None
        raise


def put_entry(store: Store, attempt: UploadAttempt, worker: int, part: Part, values: Mapping[str, Any]) -> None:
    """Report a completely written part to the leader. `values`: what this worker has that is no tensor.

    Raises Refused when the attempt was given up, StaleGeneration, OSError.
    """
    try:
        _put_entry(store, attempt, worker, {"part": part_to_json(part), "values": values})
    except OSError:
        if not _was_committed(store, attempt):
            raise


def put_refusal(store: Store, attempt: UploadAttempt, worker: int, reason: str) -> None:
    """Report to the leader that this worker's part will not come. Raises StaleGeneration, OSError."""
    try:
        with contextlib.suppress(FileNotFoundError):
            store.read(attempt.refusal)
            return  # it has given up already
        store.make_folder(attempt.folder)
        _put_entry(store, attempt, worker, {"failed": reason})
    except OSError:
        with contextlib.suppress(AttemptRefused):
            _was_committed(store, attempt)
            raise


class Gathered:
    """The entries that the leader has found."""

    def __init__(self, store: Store, attempt: UploadAttempt, leader: Leader) -> None:
        self._store, self._attempt, self._leader = store, attempt, leader
        self._parts: dict[int, Part] = {}
        self._values: dict[int, Mapping[str, Any]] = {}
        self._is_done = False

    def add(self, worker: int, part: Part, values: Mapping[str, Any]) -> None:
        """What `put_entry` would enter, without a file: of the leader's own part, if it is the last to come."""
        self._parts[worker] = part
        self._values[worker] = dict(values)

    def look(self) -> bool:
        """Whether all are there by now. Raises Refused when one cannot come, StaleGeneration, OSError."""
        if self._is_whole:
            return True
        try:
            names = set(self._store.list(self._attempt.folder))
            if not names and has_ended(self._store, self._attempt):
                self._is_done = True  # by a daemon before this one, which died before it reported that
                return True
            for worker in self._leader.writers:
                if worker not in self._parts and _entry_name(worker) in names:
                    self._parts[worker] = self._read(worker)
        except OSError:
            require(self._store, self._attempt.fence)
            raise
        return self._is_whole

    @property
    def _is_whole(self) -> bool:
        return len(self._parts) == len(self._leader.writers)

    def commit(self) -> int:
        """Make it a checkpoint, unless it is one; its bytes. Raises StaleGeneration, OSError."""
        if self._is_done:
            return read_manifest(self._store, self._attempt.slot).num_bytes
        fence, leader = self._attempt.fence, self._leader
        parts = tuple(self._parts[worker] for worker in leader.writers)
        if not self._values:
            raise AttemptRefused("no entry has the non-tensor state")
        manifest = Manifest(
            self._attempt.step, fence.term, self._attempt.id, fence.generation, fence.job, time.time(), leader.mesh,
            leader.tensors, parts, leader.state, merged(self._values),
        )  # fmt: skip
        require(self._store, fence)  # a store that is not mounted has no claims: nothing is committed beside it
        commit(self._store, fence, self._attempt.slot, self._attempt.folder, manifest)
        return manifest.num_bytes

    def tidy(self) -> None:
        """Remove expired checkpoints. Raises StaleGeneration, OSError."""
        require(self._store, self._attempt.fence)
        retain(self._store, self._leader.retention)

    def give_up(self, reason: str) -> None:
        """Notify all that wait, and remove what is there. Raises StaleGeneration, OSError."""
        try:
            self._store.make_folder(self._attempt.fence.work)
            self._store.replace(self._attempt.refusal, reason.encode())
        except OSError:
            require(self._store, self._attempt.fence)
            raise
        self._store.remove(self._attempt.folder)

    def _read(self, worker: int) -> Part:
        name = f"{self._attempt.folder}/{_entry_name(worker)}"
        try:
            entry = json.loads(self._store.read(name))
            body = entry["body"]
            if entry["sha256"] != _digest(body) or body["attempt"] != self._attempt.id:
                raise ValueError("its digest does not match its text")
            if "failed" in body:
                raise AttemptRefused(f"worker {worker}: {body['failed']}")
            if body["values"] is not None:
                self._values[worker] = dict(body["values"])
            return part_from_json(body["part"])
        except (KeyError, TypeError, ValueError, ManifestInvalid) as error:
            raise AttemptRefused(f"the entry of worker {worker} is not readable: {error}") from None


def _was_committed(store: Store, attempt: UploadAttempt) -> bool:
    """Whether an error came of the leader's haste: from the last entry's rename on it may take the folder away.

    Raises Refused when it did so to give up, StaleGeneration, OSError.
    """
    require(store, attempt.fence)  # first: a store that is down is asked once
    return is_committed(store, attempt)


def _entry_name(worker: int) -> str:
    return f"part-{worker:05d}.json"


def _put_entry(store: Store, attempt: UploadAttempt, worker: int, body: dict[str, Any]) -> None:
    body = {"attempt": attempt.id, **body}
    content = json.dumps({"sha256": _digest(body), "body": body}).encode()
    store.replace(f"{attempt.folder}/{_entry_name(worker)}", content)


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
