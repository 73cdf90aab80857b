"""Keeps one run's state: claims the store, goes on from the newest state there is, saves every so often.

Beside a node's daemon a save is a snapshot in memory, and the rest happens while training goes on. Without one, workers
write to the store themselves, and training waits. A store that is down when the run begins is claimed later, as long
as memory has what to go on from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from holdfast.base.errors import HoldfastError
from holdfast.base.retry import Backoff
from holdfast.checkpoint.commit.retention import Retention, spare
from holdfast.checkpoint.commit.save import Saved, SavingWorkers, save
from holdfast.checkpoint.errors import CheckpointError, StaleGeneration
from holdfast.checkpoint.format.arrays import HeldShard
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.transfer import write_shares
from holdfast.checkpoint.format.worker_state import by_the_first
from holdfast.checkpoint.restore.group import SavingGroup
from holdfast.checkpoint.restore.memory import restore_from_memory
from holdfast.checkpoint.restore.restore import Restored, restore
from holdfast.checkpoint.restore.traffic import Traffic, counted
from holdfast.checkpoint.stores.folder import committed
from holdfast.checkpoint.stores.opening import open_store
from holdfast.checkpoint.stores.throttle import Throttled
from holdfast.checkpoint.worker.agreement import agreed_layout, gathered
from holdfast.checkpoint.worker.options import CheckpointOptions, CheckpointWatch, Run
from holdfast.checkpoint.worker.preemption import Notice, Preempted
from holdfast.checkpoint.worker.stage1 import Snapshots, find_node, open_snapshots
from holdfast.checkpoint.worker.state import State
from holdfast.checkpoint.worker.store_claim import StoreClaim
from holdfast.checkpoint.worker.torch_state import Rooms, of_local
from holdfast.wire.rollback import counts, from_environment

_LAST_S = 1800.0
"""How long the end of a job waits for an upload that goes well."""
_MEET_S = 5.0
VOTES = 6
"""How many answers `votes` has beside a daemon."""


class CheckpointManager:
    """Saves and restores one run's state. Every method is called by all workers together."""

    def __init__(
        self,
        options: CheckpointOptions,
        run: Run,
        group: SavingGroup,
        state: State,
        mesh: Mapping[str, int],
        settings: Mapping[str, Any],
        device: torch.device,
        watch: CheckpointWatch,
        first_counts: frozenset[str] = frozenset(),
    ) -> None:
        """Claims the store for this generation. `settings` must be equal in a run that goes on from here.

        `first_counts`: tensors that workers may have otherwise, of which the first one's is kept. Raises
        StaleGeneration, and UsageError when the store is not writable and there is no memory to go on from.
        """
        self.options, self.run, self.group, self.state, self.watch = options, run, group, state, watch
        self.store = Throttled(open_store(options.store, options.timeout_s), options.max_mb_per_s * 1e6)
        self.mirrors = [open_store(url, options.timeout_s) for url in options.mirrors]
        self._rollbacks = from_environment(os.environ)
        self.last_saved: int | None = None
        self.bytes_read = self.bytes_sent = 0
        """Bytes that this worker read and sent for the last restore."""
        self.traffic = Traffic()
        """The same of all workers. Known to all alike."""
        self.source = ""
        """Where the last restore came from: memory, peer or store."""
        self.is_stored = True
        """False when the job's last state is not in the store. Known to all workers alike."""
        self.snapshots: Snapshots | None = None
        self._number = 0
        self._reported = ""
        self._device = device
        self.node = find_node(run, group, options.peers, watch) if options.snapshot_every else None
        self.claim = StoreClaim(self.store, run, group, options.timeout_s)
        self._make_claim()
        if self.node is None:
            self.claim.require()
        tensors, _ = state.capture()
        self.layout = agreed_layout(self.group, tensors)
        shares = write_shares(by_the_first(self.layout, first_counts))
        retention = Retention(options.keep, options.keep_every)
        self.job = SavingWorkers(mesh, settings, self.layout.tensors, shares, retention)
        self._digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        self._uploading: int | None = None
        self._wanted = False
        self._failing = False
        self._asked_at = time.monotonic()
        self._notice = Notice()

    def restore(self) -> int:
        """Go on from the newest whole state, of whatever layout; steps it completed, 0 when there is none.

        Raises CheckpointMismatch, CheckpointError, and UsageError when the store is down and memory has nothing.
        """
        began = time.monotonic()
        tensors, _ = self.state.capture()
        rooms = Rooms(tensors)
        found = self._find(rooms.places)
        if found is None:
            return 0
        restored, self.source = found
        filled = rooms.filled(restored.held)
        del rooms
        world = 1
        for size in restored.manifest.mesh.values():
            world *= size
        self.state.put_back(filled, restored.manifest.values, world == self.run.world)
        self.bytes_read, self.bytes_sent = restored.bytes_read, restored.bytes_sent
        step = restored.manifest.step
        # What only memory has, the store shall have too.
        self.last_saved = step if self.source == "store" else None
        self.traffic = counted(self.group, self.bytes_read, self.bytes_sent)
        if self.group.rank == 0:
            seconds = time.monotonic() - began
            self.watch.restored(step, self.source, seconds, self.traffic.read, self.traffic.sent)
            if self.claim.fence is None:
                self.watch.warn(
                    f"{self.claim.down}: resuming from {self.source} with step {step}; retrying the store later"
                )
        return step

    def _find(self, places: Mapping[str, Sequence[HeldShard]]) -> tuple[Restored, str] | None:
        warn = self.watch.warn
        if self.node is not None:
            at_least = self._newest() if self.group.rank == 0 and self.claim.fence is not None else 0
            found = restore_from_memory(
                self.group, layout=self.layout, job=self.run.job, settings=self._digest, node=self.node.name,
                folder=self.node.folder, at_least=at_least, warn=warn, places=places, counts=self._counts,
                have_own=self.state.has_own,
            )  # fmt: skip
            if found is not None:
                return found
        self._require_store()
        stored = restore(
            self.store, self.group, layout=self.layout, state=self.job.state, warn=warn, mirrors=self.mirrors,
            places=places, counts=self._counts, snapshots=None if self.node is None else self.node.folder,
            problem=self.state.problem,
        )  # fmt: skip
        return None if stored is None else (stored, "store")

    def _counts(self, manifest: Manifest) -> bool:
        """Whether the controller lets us go on from it. Generations of another job are all older than ours."""
        generation = manifest.generation if manifest.job == self.run.job else 0
        return counts(self._rollbacks, manifest.step, generation)

    def _require_store(self) -> None:
        if self.claim.fence is None and self.node is not None:
            self.node.client.close()
        self.claim.require()

    def _make_claim(self) -> None:
        try:
            self.claim.make()
        except StaleGeneration:
            if self.node is not None:
                self.node.client.close()
            raise

    def _newest(self) -> int:
        """The newest step in the store that fits this run; 0 when there is none, or the store does not answer."""
        try:
            found = (manifest for _, manifest in committed(self.store) if manifest.state == self.job.state)
            return next((manifest.step for manifest in found if self._counts(manifest)), 0)
        except OSError:
            return 0

    def open(self) -> None:
        """Get ready for snapshots. Called after `restore`, which wants to see what is in memory as it was left.

        Raises UsageError when the store is down and nothing was restored.
        """
        if not self.source:
            self._require_store()
            self._keep_others()
        if self.node is not None:
            self.snapshots = open_snapshots(
                self.node, self.options, self.run, self.group, self.job, self._digest, self.state.capture()[0],
                self.claim.fence, self.claim.down, self._device, self.watch,
            )  # fmt: skip
        self._notice.listen()

    def _keep_others(self) -> None:
        """What is in the store when a run begins anew there is no older state of it, for retention to remove."""
        if self.group.rank != 0 or self.claim.fence is None:
            return
        with contextlib.suppress(OSError, CheckpointError):
            if (spared := spare(self.store, self.claim.fence.term)) is not None:
                self.watch.warn(
                    f"starting over in a store that has a checkpoint of step {spared.step}: {spared.folder} is now "
                    "protected, until `holdfast checkpoint protect --off`"
                )

    # --- beside a daemon

    def votes(self, steps: int) -> list[bool]:
        """This worker's answers, before the collective of the step that makes them `steps`: was it asked to end? And
        beside a daemon: does it want a checkpoint, has it no room for a snapshot, is an upload under way, was a store
        claimed that had been down, is it without a safe snapshot? The last snapshot is complete when this returns."""
        if self.snapshots is None:
            return [self._notice.given]
        self.snapshots.settle()
        for note in self.snapshots.notes():
            self._heed(note)
        options = self.options
        if self.group.rank == 0:
            self._wanted |= options.every > 0 and steps % options.every == 0 and steps != self.last_saved
            self._wanted |= options.every_s > 0 and time.monotonic() - self._asked_at >= options.every_s
        self._wanted |= self.watch.requested()
        if self._wanted:
            self.claim.poke()
        is_unsafe = self.snapshots.safe_step == 0
        is_full, is_uploading = not self.snapshots.has_room(), self._uploading is not None
        return [self._notice.given, self._wanted, is_full, is_uploading, self.claim.is_due, is_unsafe]

    def _snapshot(self, steps: int, votes: Sequence[int], is_last: bool) -> None:
        """Begin the snapshot that all workers agreed on, if they did."""
        shots = self.snapshots
        assert shots is not None
        preempted, wanted, full, uploading, claimed, unsafe = votes
        if claimed or (is_last and self.claim.fence is None):
            self._take_over(is_last)
        if not unsafe:
            shots.sweep()
        is_end = is_last or preempted > 0
        # One at a time: what is wanted meanwhile waits, and will be the newest step by then.
        persist = bool(wanted and not uploading) or (is_end and steps != self.last_saved)
        persist = persist and self.claim.fence is not None
        if is_last and persist:
            self._wait_for_upload()  # a worker that went ahead would take its part of that one back
        elif not is_end and (full or not (persist or (shots.every and steps % shots.every == 0))):
            return
        tensors, values = self.state.capture()
        # After SIGTERM the remaining time is unknown: a running upload yields.
        shots.begin(steps, values, tensors, persist)
        if persist:
            self._wanted, self._asked_at, self._failing = False, time.monotonic(), False
            self._uploading = steps if self.group.rank == 0 else None
        if is_end:
            shots.settle()
            self._wait_for_upload(math.inf if not is_last else _LAST_S)

    def _take_over(self, is_last: bool) -> None:
        """Let all know of the claim on a store that was down. At the end of the run it is tried once more."""
        self._make_claim()
        if self.claim.fence is None:
            if is_last and self.group.rank == 0:
                self.watch.warn(f"{self.claim.down}: the last state is in memory only")
            return
        if self.group.rank == 0:
            self.watch.warn(f"checkpoint.store {self.store.url} is back")
        if self.snapshots is not None:
            try:
                self.snapshots.join_store(self.options.store, self.claim.fence)
            except HoldfastError as error:
                self.watch.warn(f"rank {self.run.rank}: {error}")

    def _wait_for_upload(self, patience_s: float = 0.0) -> None:
        """Rank 0 sees the last upload end: until then the job is not at its end. Called by all workers together.

        It waits for as long as the upload goes well, within `patience_s`; of one that fails it gives up soon. They
        meet now and then: a collective that takes too long is an error.
        """
        assert self.snapshots is not None
        client, give_up = self.snapshots.node.client, time.monotonic() + self.options.timeout_s
        patient_until = time.monotonic() + patience_s
        is_under_way = True
        while is_under_way:
            meet_at = time.monotonic() + _MEET_S
            with self.watch.operation("checkpoint:upload"):
                while self._uploading is not None and time.monotonic() < min(give_up, meet_at):
                    for note in self.snapshots.notes():
                        self._heed(note)
                    if client.is_connected and not self._failing and time.monotonic() < patient_until:
                        give_up = time.monotonic() + self.options.timeout_s
                    time.sleep(0.005)
            is_mine = self._uploading is not None and time.monotonic() < give_up
            is_under_way = self.group.broadcast(b"wait" if is_mine else b"") == b"wait"

    def _leave(self, steps: int) -> None:
        """A worker was asked to end: all do when the state is where it outlives their nodes. Raises Preempted."""
        is_stored = self.group.broadcast(b"stored" if self.last_saved == steps else b"") == b"stored"
        shots = self.snapshots
        if shots is not None and not is_stored:
            give_up = time.monotonic() + self.options.timeout_s
            with self.watch.operation("checkpoint:copy"):
                while shots.safe_step < steps and time.monotonic() < give_up:
                    shots.notes()
                    time.sleep(0.005)
        where = "in the store" if is_stored else "nowhere" if shots is None else "in memory"
        why = "received SIGTERM" if self._notice.given else "ends with a worker that received SIGTERM"
        self.watch.warn(f"rank {self.run.rank} {why}: step {steps} is {where}")
        raise Preempted

    def _heed(self, note: Mapping[str, Any]) -> None:
        kind, step, error = note["note"], note.get("step"), note.get("error")
        if kind == "persisted":
            self.last_saved = step
        if kind in ("persisted", "refused") and step == self._uploading:
            self._uploading = None
        self._failing = kind == "failing" if kind in ("failing", "persisted", "refused") else self._failing
        if kind in ("refused", "failing", "peer-failing", "repaired"):
            what = "copy of the snapshot" if kind == "peer-failing" else "checkpoint"
            self.watch.warn(f"{what} of step {step}: {kind.removeprefix('peer-')}: {error}")

    def close(self, done: bool) -> None:
        """`done`: the job came to its end."""
        self._notice.stop()
        if self.snapshots is not None:
            # What did not get to the store stays in memory for a while.
            self.snapshots.close(forget=done and self.is_stored)
        elif self.node is not None:
            self.node.client.close()

    # --- without one

    def after_step(self, steps: int, votes: Sequence[int], is_last: bool) -> None:
        """Do what is due when `steps` steps are done; `votes`: how many said yes to each.

        Raises StaleGeneration; Preempted, on all workers, when one was asked to end before the job's end.
        """
        votes = votes or (0,) * VOTES
        is_preempted = votes[0] > 0 and not is_last
        if self.snapshots is not None:
            if is_last or is_preempted:
                self.watch.phase("checkpoint")
            self._snapshot(steps, votes, is_last)
        elif self._is_due(steps, is_last or is_preempted):
            self.watch.phase("checkpoint")
            saved = self.save(steps)
            if is_last and not saved.ok:
                self._save_again(steps)
            self.watch.phase("train")
        if is_preempted:
            self._leave(steps)
        if is_last:
            self.is_stored = self.group.broadcast(b"stored" if self.last_saved == steps else b"") == b"stored"

    def _save_again(self, steps: int) -> None:
        """There is no next checkpoint that would make up for the last one: retry for a while, all workers together."""
        give_up, delays = time.monotonic() + self.options.timeout_s, Backoff(initial=0.5, cap=5.0).delays()
        while True:
            wait = min(next(delays), give_up - time.monotonic())
            if self.group.broadcast(b"again" if wait > 0 else b"") != b"again":
                return
            with self.watch.operation("checkpoint:again"):
                time.sleep(max(wait, 0.0))
            if self.save(steps).ok:
                return

    def _is_due(self, steps: int, is_last: bool) -> bool:
        if steps == self.last_saved:
            return False
        return is_last or (self.options.every > 0 and steps % self.options.every == 0)

    def save(self, steps: int) -> Saved:
        """Save the state after `steps` steps. A write that fails is a warning. Raises StaleGeneration."""
        if self.claim.fence is None:
            self._take_over(is_last=False)
        if self.claim.fence is None:
            saved = Saved(steps, False, self.claim.down)
        else:
            tensors, values = self.state.capture()
            held = {name: [of_local(*one)] for name, one in tensors.items()}
            everyones = gathered(self.group, values)
            saved = save(self.store, self.group, self.claim.fence, self.job, steps, held, everyones, self._number)
        self._number += 1
        if saved.ok:
            self.last_saved = steps
        elif self.group.rank == 0:
            good = "none" if saved.last_good is None else f"step {saved.last_good}"
            text = f"checkpoint of step {steps} failed: {saved.reason}; last good: {good}"
            if text != self._reported:  # the last one is tried again and again
                self.watch.warn(text)
            self._reported = text
        return saved
