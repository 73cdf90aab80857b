"""The trainer's side of checkpoints: claim the store, go on from the newest, save every so often.

Beside a node's daemon a save is a snapshot in memory, and the rest happens while training goes on. Without one, ranks
write to the store themselves, and training waits.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.agent import probe
from holdfast.checkpoint.arrays import Held
from holdfast.checkpoint.errors import CheckpointError, StaleGeneration
from holdfast.checkpoint.fence import Fence, claim
from holdfast.checkpoint.folder import committed
from holdfast.checkpoint.group import ProcessGroup
from holdfast.checkpoint.memory import restore_from_memory
from holdfast.checkpoint.restore import Restored, restore
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.save import Job, Saved, save
from holdfast.checkpoint.store import open_store
from holdfast.checkpoint.throttle import Throttled
from holdfast.checkpoint.tiles import Layout, layout_from_json, layout_to_json
from holdfast.checkpoint.transfer import write_shares
from holdfast.trainer.config import CheckpointConfig
from holdfast.trainer.errors import ConfigError
from holdfast.trainer.launch import Launch
from holdfast.trainer.mesh import Mesh
from holdfast.trainer.optimizer import Optimizer
from holdfast.trainer.slices import Slice
from holdfast.trainer.snapshots import Snapshots, find_node, open_snapshots
from holdfast.trainer.state import capture, put_back, tensors, values


class Keeper:
    """Saves and restores one run's state. Every method is called by all ranks together."""

    def __init__(
        self,
        config: CheckpointConfig,
        launch: Launch,
        mesh: Mesh,
        slices: list[Slice],
        optimizer: Optimizer,
        settings: dict[str, object],
    ) -> None:
        """Claims the store for this generation. Raises StaleGeneration, ConfigError if it is not writable."""
        self.config, self.slices, self.optimizer = config, slices, optimizer
        self.store = Throttled(open_store(config.store, config.timeout_s), config.max_mb_per_s * 1e6)
        self.mirrors = [open_store(url, config.timeout_s) for url in config.mirrors]
        self.group = ProcessGroup(operation=probe.operation)
        self.last_saved: int | None = None
        self.bytes_read = 0
        """Bytes that this rank read from stores for the last restore."""
        self._number = 0
        self.fence = self._claim(launch)
        self.layout = self._agree(capture(slices, optimizer))
        retention = Retention(config.keep, config.keep_every)
        shares = write_shares(self.layout)
        self.job = Job(mesh.sizes, settings, self.layout.tensors, shares, retention)
        self._digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        self._launch, self._device = launch, mesh.device
        self.node = find_node(launch, self.group, config.peers, warn) if config.snapshot_every else None
        self.snapshots: Snapshots | None = None
        self.source = ""
        """Where the last restore came from: memory, peer or store."""
        self._uploading: int | None = None
        self._wanted = False
        self._asked_at = time.monotonic()

    def restore(self) -> int:
        """Go on from the newest whole checkpoint, of whatever layout; steps it completed, 0 when there is none.

        Raises CheckpointMismatch, CheckpointError.
        """
        began = time.monotonic()
        found = self._find()
        if found is None:
            return 0
        restored, self.source = found
        put_back(restored.held, restored.manifest.values, self.slices, self.optimizer)
        self.bytes_read = restored.bytes_read
        step = restored.manifest.step
        # What only memory has, the store shall have too.
        self.last_saved = step if self.source == "store" else None
        everywhere = sum(int(one) for one in self.group.gather(str(self.bytes_read).encode()))
        if self.group.rank == 0:
            probe.restored(step, self.source, time.monotonic() - began, everywhere)
        return step

    def _find(self) -> tuple[Restored, str] | None:
        if self.node is not None:
            at_least = self._newest() if self.group.rank == 0 else 0
            found = restore_from_memory(
                self.group, layout=self.layout, job=self._launch.job, settings=self._digest, node=self.node.name,
                folder=self.node.folder, at_least=at_least, warn=warn,
            )  # fmt: skip
            if found is not None:
                return found
        stored = restore(
            self.store, self.group, layout=self.layout, state=self.job.state, warn=warn, mirrors=self.mirrors
        )
        return None if stored is None else (stored, "store")

    def _newest(self) -> int:
        """The newest step in the store that fits this run; 0 when there is none, or nobody answers."""
        try:
            fitting = (slot.step for slot, manifest in committed(self.store) if manifest.state == self.job.state)
            return next(fitting, 0)
        except OSError:
            return 0

    def open(self) -> None:
        """Get ready for snapshots. Called after `restore`, which wants to see what is in memory as it was left."""
        if self.node is not None:
            self.snapshots = open_snapshots(
                self.node, self.config, self._launch, self.group, self.job, self._digest,
                tensors(self.slices, self.optimizer), self.fence, self._device, warn,
            )  # fmt: skip

    # --- beside a daemon

    def votes(self, steps: int) -> list[bool]:
        """This rank's answers, before the collective of the step that makes them `steps`: does it want a checkpoint,
        has it no room for a snapshot, is an upload under way? The last snapshot is complete when this returns."""
        if self.snapshots is None:
            return []
        self.snapshots.settle()
        for note in self.snapshots.notes():
            self._heed(note)
        config = self.config
        if self.group.rank == 0:
            self._wanted |= config.every > 0 and steps % config.every == 0 and steps != self.last_saved
            self._wanted |= config.every_s > 0 and time.monotonic() - self._asked_at >= config.every_s
        self._wanted |= probe.requested()
        return [self._wanted, not self.snapshots.has_room(), self._uploading is not None]

    def _snapshot(self, steps: int, votes: Sequence[int], is_last: bool) -> None:
        """Begin the snapshot that all ranks agreed on, if they did."""
        shots = self.snapshots
        assert shots is not None
        wanted, full, uploading = votes
        # One at a time: what is wanted meanwhile waits, and will be the newest step by then.
        persist = bool(wanted and not uploading) or (is_last and steps != self.last_saved)
        if is_last and persist:
            self._wait_for_upload()
        elif full or not (persist or (shots.every and steps % shots.every == 0)):
            return
        shots.begin(steps, values(self.optimizer), tensors(self.slices, self.optimizer), persist)
        if persist:
            self._wanted, self._asked_at = False, time.monotonic()
            self._uploading = steps if self.group.rank == 0 else None
        if is_last:
            shots.settle()
            self._wait_for_upload()

    def _wait_for_upload(self) -> None:
        """Rank 0 sees the last upload end: until then the job is not at its end."""
        assert self.snapshots is not None
        give_up = time.monotonic() + self.config.timeout_s
        with probe.operation("checkpoint:upload"):
            while self._uploading is not None and time.monotonic() < give_up:
                for note in self.snapshots.notes():
                    self._heed(note)
                time.sleep(0.005)

    def _heed(self, note: Mapping[str, Any]) -> None:
        kind, step, error = note["note"], note.get("step"), note.get("error")
        if kind == "persisted":
            self.last_saved = step
        if kind in ("persisted", "refused") and step == self._uploading:
            self._uploading = None
        if kind in ("refused", "failing", "peer-failing", "repaired"):
            what = "copy of the snapshot" if kind == "peer-failing" else "checkpoint"
            warn(f"{what} of step {step}: {kind.removeprefix('peer-')}: {error}")

    def close(self, done: bool) -> None:
        """`done`: the job came to its end."""
        if self.snapshots is not None:
            # What did not get to the store stays in memory for a while.
            self.snapshots.close(forget=done and self._uploading is None)
        elif self.node is not None:
            self.node.client.close()

    # --- without one

    def after_step(self, steps: int, votes: Sequence[int], is_last: bool) -> None:
        """Do what is due when `steps` steps are done. Raises StaleGeneration."""
        if self.snapshots is not None:
            if is_last:
                probe.phase("checkpoint")
            self._snapshot(steps, votes, is_last)
        elif self._is_due(steps, is_last):
            probe.phase("checkpoint")
            self.save(steps)
            probe.phase("train")

    def _is_due(self, steps: int, is_last: bool) -> bool:
        if steps == self.last_saved:
            return False
        return is_last or (self.config.every > 0 and steps % self.config.every == 0)

    def save(self, steps: int) -> Saved:
        """Save the state after `steps` steps. A write that fails is a warning. Raises StaleGeneration."""
        held, state = capture(self.slices, self.optimizer), values(self.optimizer)
        saved = save(self.store, self.group, self.fence, self.job, steps, held, state, self._number)
        self._number += 1
        if saved.ok:
            self.last_saved = steps
        elif self.group.rank == 0:
            good = "none" if saved.last_good is None else f"step {saved.last_good}"
            warn(f"checkpoint of step {steps} failed: {saved.reason}; last good: {good}")
        return saved

    def _agree(self, held: Mapping[str, Sequence[Held]]) -> Layout:
        """What all ranks hold, known to all."""
        mine = layout_to_json([(one.tensor, one.box) for boxes in held.values() for one in boxes])
        everyone = [zlib.decompress(one).decode() for one in self.group.gather(zlib.compress(mine.encode(), 1))]
        told = self.group.broadcast(zlib.compress(json.dumps(everyone).encode(), 1))
        return layout_from_json(json.loads(zlib.decompress(told)))

    def _claim(self, launch: Launch) -> Fence:
        answer: dict[str, str | int] = {}
        if self.group.rank == 0:
            try:
                fence = claim(self.store, launch.job, launch.generation)
                answer = {"term": fence.term, "token": fence.token}
            except StaleGeneration as error:
                answer = {"stale": str(error)}
            except (OSError, CheckpointError) as error:
                answer = {"failed": f"checkpoint.store {self.store.url}: {getattr(error, 'strerror', None) or error}"}
        answer = json.loads(self.group.broadcast(json.dumps(answer).encode()))
        if "stale" in answer:
            raise StaleGeneration(str(answer["stale"]))
        if "failed" in answer:
            raise ConfigError(f"{answer['failed']}: name a store that can be written")
        return Fence(int(answer["term"]), launch.generation, launch.job, str(answer["token"]))


def warn(text: str) -> None:
    """One line on standard error."""
    print(f"holdfast train: {text}", file=sys.stderr, flush=True)
