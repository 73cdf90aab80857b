"""The trainer's side of checkpoints: claim the store, go on from the newest, save every so often."""

from __future__ import annotations

import json
import sys

from holdfast.agent import probe
from holdfast.checkpoint.errors import StaleGeneration
from holdfast.checkpoint.fence import Fence, claim
from holdfast.checkpoint.group import ProcessGroup
from holdfast.checkpoint.restore import restore
from holdfast.checkpoint.save import Saved, save
from holdfast.checkpoint.store import open_store
from holdfast.trainer.config import CheckpointConfig
from holdfast.trainer.errors import ConfigError
from holdfast.trainer.launch import Launch
from holdfast.trainer.mesh import Mesh
from holdfast.trainer.optimizer import Optimizer
from holdfast.trainer.slices import Slice
from holdfast.trainer.state import capture, put_back, tiles


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
        self.config, self.mesh, self.slices, self.optimizer = config, mesh, slices, optimizer
        self.settings = settings
        self.store = open_store(config.store)
        self.group = ProcessGroup(operation=probe.operation)
        self.last_saved: int | None = None
        self.fence = self._claim(launch)

    def restore(self) -> int:
        """Go on from the newest whole checkpoint; steps it completed, 0 when there is none.

        Raises CheckpointMismatch, CheckpointError.
        """
        found = restore(self.store, self.group, mesh=self.mesh.sizes, state=self.settings, warn=warn)
        if found is None:
            return 0
        put_back(found.tensors, self.slices, self.optimizer)
        self.last_saved = found.manifest.step
        return found.manifest.step

    def is_due(self, steps: int, is_last: bool) -> bool:
        """Whether to save after `steps` steps."""
        if steps == self.last_saved:
            return False
        return is_last or (self.config.every > 0 and steps % self.config.every == 0)

    def save(self, steps: int) -> Saved:
        """Save the state after `steps` steps. A write that fails is a warning. Raises StaleGeneration."""
        saved = save(
            self.store,
            self.group,
            self.fence,
            steps,
            capture(self.slices, self.optimizer),
            mesh=self.mesh.sizes,
            state=self.settings,
            part_state=tiles(self.slices, self.mesh),
            keep=self.config.keep,
        )
        if saved.ok:
            self.last_saved = steps
        elif self.group.rank == 0:
            good = "none" if saved.last_good is None else f"step {saved.last_good}"
            warn(f"checkpoint of step {steps} failed: {saved.reason}; last good: {good}")
        return saved

    def _claim(self, launch: Launch) -> Fence:
        answer: dict[str, str | int] = {}
        if self.group.rank == 0:
            try:
                fence = claim(self.store, launch.job, launch.generation)
                answer = {"term": fence.term}
            except StaleGeneration as error:
                answer = {"stale": str(error)}
            except OSError as error:
                answer = {"failed": f"checkpoint.store {self.store.url}: {error.strerror or error}"}
        answer = json.loads(self.group.broadcast(json.dumps(answer).encode()))
        if "stale" in answer:
            raise StaleGeneration(str(answer["stale"]))
        if "failed" in answer:
            raise ConfigError(f"{answer['failed']}: name a folder that can be written")
        return Fence(int(answer["term"]), launch.generation, launch.job)


def warn(text: str) -> None:
    """One line on standard error."""
    print(f"holdfast train: {text}", file=sys.stderr, flush=True)
