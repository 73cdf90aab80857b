"""The trainer's side of checkpoints: claim the store, go on from the newest, save every so often."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Mapping, Sequence

from holdfast.agent import probe
from holdfast.checkpoint.arrays import Held
from holdfast.checkpoint.errors import CheckpointError, StaleGeneration
from holdfast.checkpoint.fence import Fence, claim
from holdfast.checkpoint.group import ProcessGroup
from holdfast.checkpoint.restore import restore
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
from holdfast.trainer.state import capture, put_back, values


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

    def restore(self) -> int:
        """Go on from the newest whole checkpoint, of whatever layout; steps it completed, 0 when there is none.

        Raises CheckpointMismatch, CheckpointError.
        """
        found = restore(
            self.store, self.group, layout=self.layout, state=self.job.state, warn=warn, mirrors=self.mirrors
        )
        if found is None:
            return 0
        put_back(found.held, found.manifest.values, self.slices, self.optimizer)
        self.bytes_read = found.bytes_read
        self.last_saved = found.manifest.step
        return found.manifest.step

    def is_due(self, steps: int, is_last: bool) -> bool:
        """Whether to save after `steps` steps."""
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
