"""Checkpoints for any training script that uses PyTorch.

    from holdfast.checkpoint import Checkpointer

    checkpointer = Checkpointer("file:///data/run1", {"model": model, "optimizer": optimizer}, every=100)
    for step in range(checkpointer.restore(), steps):
        ...
        checkpointer.step(step + 1)
    checkpointer.close()

It works alone, under torchrun, and under `holdfast run`, where every step is also kept in the memory of the nodes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from holdfast.base.errors import UsageError
from holdfast.checkpoint.restore.group import Alone, ProcessGroup, SavingGroup
from holdfast.checkpoint.worker.manager import CheckpointManager
from holdfast.checkpoint.worker.options import CheckpointOptions, CheckpointWatch, Run
from holdfast.checkpoint.worker.preemption import Preempted
from holdfast.checkpoint.worker.user_state import Randomness, UserState

_TIMEOUT = timedelta(minutes=30)


class Checkpointer:
    """Saves and restores what it is given. Every method is called by all workers together, from one thread."""

    def __init__(
        self,
        store: str,
        state: Mapping[str, Any],
        *,
        every: int = 100,
        own: Mapping[str, Any] | None = None,
        rng: bool = True,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """`store`: a URL or path. `every`: steps between checkpoints; 0: only at the end.

        `state`: by name, what belongs to the job: modules, their optimizers, tensors, and anything with `state_dict`
        and `load_state_dict` (schedulers, counters of progress). Plain tensors are taken to be the same on all workers.
        `own`: the same of what each worker has for itself (where its data loader is); `rng` adds the generators. It
        goes back only into a world of the same size. `settings`: JSON that must be equal in a run that goes on from
        here. `options`: the others of `CheckpointOptions`. Call it when the model is on its device, wrapped, and the
        optimizer is there. Raises UsageError, StaleGeneration.
        """
        run = _run(os.environ)
        self._group: dist.ProcessGroup | None = None
        watch = _watch()
        group: SavingGroup = Alone()
        if run.world > 1:
            # Its own, so that nothing of the script's can come between; for CPU tensors, so gloo.
            self._group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
            group = ProcessGroup(self._group, watch.operation)
        own = own or {}
        if rng and "rng" in own:
            raise UsageError("own: the name rng is reserved for the random generators: use another name, or rng=False")
        given = {**own, **({"rng": Randomness()} if rng else {})}
        equal = _as_json(settings or {})
        try:
            chosen = CheckpointOptions(store, every, **options)
        except TypeError as error:
            raise UsageError(f"Checkpointer: {str(error).replace('Options.__init__() ', '')}") from None
        self._state = UserState(state, given, run.rank)
        self._state.capture()  # errors about the state come before any about the store
        _require_same_places(group, self._state.places())
        self._watch, self._done = watch, 0
        self._manager = CheckpointManager(
            chosen, run, group, self._state, {"world": run.world}, equal, _device(state), watch,
            self._state.buffers,
        )  # fmt: skip
        self._is_open = self._is_closed = False

    @property
    def source(self) -> str:
        """Where the last restore came from: memory, peer or store; "" when there was nothing."""
        return self._manager.source

    def restore(self) -> int:
        """Go on from the newest whole state there is; steps it has done, 0 when there is none.

        Raises CheckpointMismatch, CheckpointError, UsageError.
        """
        self._done = self._manager.restore()
        if self._manager.group.rank == 0:
            if self._state.left_out:
                self._watch.warn(f"another number of workers: {', '.join(self._state.left_out)}")
            if self._state.unmatched:
                self._watch.warn(", ".join(self._state.unmatched))
        return self._done

    def step(self, steps: int) -> None:
        """`steps` steps are done: snapshot and save what is due. Before anything changes the state again.

        When a worker was asked to end (SIGTERM), the state is saved now, and all workers end with code 143: raises
        Preempted, which is a SystemExit. Raises StaleGeneration when a newer run has the store, CheckpointError.
        """
        self._open()
        self._done = steps
        try:
            self._manager.after_step(steps, self._vote(), is_last=False)
        except Preempted:
            self._is_closed = True
            self._manager.close(done=False)
            raise
        if self._manager.snapshots is not None:
            # The next optimizer step may come at any time, and does not ask us.
            self._manager.snapshots.wait_copied()

    def close(self) -> bool:
        """The job is done: save its last state, unless nothing was done, and leave. Idempotent.

        False, on all workers, when the last state could not be stored: the reason was said. Snapshots stay in memory.
        """
        if self._is_closed:
            return self._manager.is_stored
        self._is_closed = True
        if self._done:
            self._open()
            self._manager.after_step(self._done, self._vote(), is_last=True)
        self._manager.close(done=True)
        if self._group is not None:
            dist.destroy_process_group(self._group)
        return self._manager.is_stored

    def _open(self) -> None:
        if not self._is_open:
            self._manager.open()
            self._is_open = True

    def _vote(self) -> list[int]:
        """How many workers say yes to each."""
        votes = torch.tensor(self._manager.votes(self._done), dtype=torch.int64)
        if self._group is not None:
            with self._watch.operation("checkpoint:vote"):
                dist.all_reduce(votes, group=self._group)
        return [int(one) for one in votes]


def _run(env: Mapping[str, str]) -> Run:
    generation = env.get("HOLDFAST_GENERATION", env.get("TORCHELASTIC_RESTART_COUNT", "0"))
    job = env.get("HOLDFAST_JOB", "")
    number = int(generation) if generation.isdigit() else 0
    if dist.is_available() and dist.is_initialized():
        return Run(dist.get_rank(), dist.get_world_size(), job, number)
    if env.get("WORLD_SIZE", "1") not in ("", "1"):
        raise UsageError(
            f"WORLD_SIZE is {env['WORLD_SIZE']}, but torch.distributed is not initialised: "
            "call init_process_group before Checkpointer"
        )
    return Run(0, 1, job, number)


def _require_same_places(group: SavingGroup, mine: Mapping[str, str]) -> None:
    """Raise UsageError, on all workers, if one name is that of different entries on different ones.

    `mine`: by name, the exact place. Few are called otherwise than their place, so only those are exchanged.
    """
    if group.size == 1:
        return
    reported = group.gather(json.dumps({name: at for name, at in mine.items() if name != at}).encode())
    known: dict[str, str] = {}
    problem = ""
    for rank, theirs in enumerate(map(json.loads, reported)):
        for name, at in theirs.items():
            if known.setdefault(name, at) != at:
                problem = problem or f"{name} is {at} on rank {rank}, and {known[name]} on an earlier one"
    known, problem = json.loads(group.broadcast(json.dumps([known, problem]).encode()))
    for name, at in known.items():
        if not problem and mine.get(name, at) != at:
            problem = f"{name} is {mine[name]} on rank {group.rank}, and {at} on another"
    if not group.all_agree(not problem):
        raise UsageError(f"state: {problem or 'one name is that of different entries on different ranks'}")


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they will come back. Raises UsageError, naming it, for one that would not."""
    for key, value in settings.items():
        try:
            text = json.dumps({key: value}, allow_nan=False)
            if type(key) is not str or _without_tuples({key: value}) != json.loads(text):
                raise ValueError("its keys are not all text")
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"settings: {str(key)!r} is not JSON: {error}") from None
    return dict(json.loads(json.dumps(dict(settings))))


def _without_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_tuples(one) for key, one in value.items()}
    return [_without_tuples(one) for one in value] if isinstance(value, list | tuple) else value


def _watch() -> CheckpointWatch:
    # Under `holdfast run` the agent's probe is in this process already. It belongs to the agent: we only speak to it.
    probe = sys.modules.get("holdfast.agent.probe")
    if probe is None:
        return CheckpointWatch()
    return CheckpointWatch(probe.operation, lambda name: None, probe.requested, probe.restored)


def _device(state: Mapping[str, Any]) -> torch.device:
    for one in state.values():
        if isinstance(one, torch.nn.Module):
            for parameter in one.parameters():
                return parameter.device
    return torch.device("cpu")
