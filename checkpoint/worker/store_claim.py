"""The claim of a run on its store, the same at all workers. No torch.

A store that is down when the run begins is claimed later, beside training.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from holdfast.base.errors import UsageError
from holdfast.checkpoint.commit.fence import Fence, claim
from holdfast.checkpoint.commit.late_claim import LateClaim
from holdfast.checkpoint.errors import CheckpointError, StaleGeneration
from holdfast.checkpoint.restore.group import SavingGroup
from holdfast.checkpoint.stores.store import Store
from holdfast.checkpoint.worker.options import Run


class StoreClaim:
    """Made by `make`, which all workers call together, as often as the store may be back."""

    def __init__(self, store: Store, run: Run, group: SavingGroup, timeout_s: float) -> None:
        self._store, self._run, self._group, self._timeout_s = store, run, group, timeout_s
        self._late: LateClaim | None = None
        self.fence: Fence | None = None
        """None while the store is down."""
        self.down = ""
        """Why it is, in words."""

    def make(self) -> None:
        """Claim the store for this generation, unless it is down. Raises StaleGeneration."""
        answer: dict[str, Any] = {}
        if self._group.rank == 0:
            answer = self._ask()
        answer = json.loads(self._group.broadcast(json.dumps(answer).encode()))
        self.fence = None
        if "fence" in answer:
            self._late = None
            self.fence = Fence(**answer["fence"])
            return
        if "stale" in answer:
            raise StaleGeneration(answer["stale"])
        self.down = answer["failed"]
        if self._group.rank == 0 and self._late is None:
            self._late = LateClaim(self._store, self._run.job, self._run.generation)

    def require(self) -> None:
        """Raises UsageError while the store is down."""
        if self.fence is None:
            raise UsageError(f"{self.down}: name a store that can be written")

    def poke(self) -> None:
        """A checkpoint is due: retry beside training if the store was down."""
        if self._late is not None:
            self._late.poke()

    @property
    def is_due(self) -> bool:
        """Whether a store that was down has answered: `make` is due, at all workers."""
        return self._late is not None and self._late.outcome is not None

    def _ask(self) -> dict[str, Any]:
        found: Fence | StaleGeneration | None = None
        if self._late is not None:
            self._late.wait(self._timeout_s)
            found = self._late.outcome
        try:
            found = found or claim(self._store, self._run.job, self._run.generation)
        except StaleGeneration as error:
            found = error
        except (OSError, CheckpointError) as error:
            return {"failed": f"checkpoint.store {self._store.url}: {getattr(error, 'strerror', None) or error}"}
        return {"stale": str(found)} if isinstance(found, StaleGeneration) else {"fence": asdict(found)}
