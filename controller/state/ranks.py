"""The state of all ranks of a job as columns: plain arrays, so that thousands of samples a second cost little."""

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from holdfast.wire import types as t
from holdfast.wire.standing import StallFacts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class RankState(StrEnum):
    UNKNOWN = "unknown"
    RUNNING = "running"
    STALLED = "stalled"
    EXITED = "exited"
    DONE = "done"
    ENDED = "ended"
    """Along with the job: by the controller, or because another rank was gone."""
    LOST = "lost"
    """With its node. Of reports only: whether it runs is not known."""


RANK_STATES = tuple(RankState)


class RankTable:
    """The state of all ranks as columns; index = rank. Times are the controller's monotonic seconds."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.generation: Ints = np.full(world, -1, np.int64)
        self.pid: Ints = np.zeros(world, np.int64)
        self.step: Ints = np.full(world, -1, np.int64)
        self.counted: Ints = np.full(world, -1, np.int64)  # newest step of each rank that the ledger has
        self.base = 0  # added to what workers say of their step, where that is counted anew in every attempt
        self.phase: Ints = np.zeros(world, np.int64)
        self.state: Ints = np.zeros(world, np.int64)
        self.seen_at: Floats = np.full(world, np.nan)
        self.progress_at: Floats = np.full(world, np.nan)
        self.tick_at: Floats = np.full(world, np.nan)
        self.stopped: npt.NDArray[np.bool_] = np.zeros(world, np.bool_)
        self.median_step: Floats = np.full(world, np.nan)
        self.loss: Floats = np.full(world, np.nan)
        self.mfu: Floats = np.full(world, np.nan)
        self.parts: Floats = np.full((len(t.STEP_PARTS), world), np.nan)  # seconds of the last step
        self.memory_bytes: Floats = np.full(world, np.nan)
        self.lag: Floats = np.zeros(world)  # of the rank's node
        self.period: Floats = np.full(world, 0.1)  # between the frames of the rank's node, seconds
        self.operation: list[str] = [""] * world
        self.operation_at: Floats = np.full(world, np.nan)
        self.still_at: Floats = np.full(world, np.nan)  # when it last entered or left an operation
        self.pending: list[t.PendingCollective | None] = [None] * world
        self.activity: list[t.Activity | None] = [None] * world
        self.standing: list[StallFacts | None] = [None] * world
        self.left: npt.NDArray[np.bool_] = np.zeros(world, np.bool_)  # its image was replaced by exec
        self.at_gpu: npt.NDArray[np.bool_] = np.zeros(world, np.bool_)  # waits for a GPU that waits for its peers
        self.spins: npt.NDArray[np.bool_] = np.zeros(world, np.bool_)  # in a wait for its GPU, if it is quiet
        self.quiet: Floats = np.full(world, np.nan)  # seconds since anything of it moved; NaN: not measured
        self.known_until: Floats = np.full(world, np.nan)  # when the last wait that says so itself ends, or ended
        self.coordinate: Ints = np.full((world, 3), -1, np.int64)
        self.sizes: tuple[int, int, int] | None = None

    def update(self, sample: t.WorkerSample, at: float, lag: float = 0.0, period: float = 0.1) -> None:
        r = sample.rank
        self.lag[r], self.period[r] = lag, period
        if self.generation[r] != sample.generation:
            self.known_until[r] = np.nan
        self.generation[r] = sample.generation
        self.pid[r] = sample.pid
        self.step[r] = sample.step + self.base if sample.step >= 0 else sample.step
        self.phase[r] = t.PHASES.index(sample.phase)
        self.seen_at[r] = at
        self.progress_at[r] = at - sample.progress_age
        self.tick_at[r] = at - sample.tick_age
        self.stopped[r] = sample.stopped
        self.median_step[r] = sample.median_step
        self.loss[r] = sample.loss
        if (meters := sample.meters) is not None:
            self.mfu[r], self.memory_bytes[r] = meters.mfu, meters.memory_bytes
            self.parts[:, r] = meters.parts
        self.operation[r] = sample.operation
        self.operation_at[r] = at - sample.operation_age
        self.still_at[r] = at - sample.still_age
        self.pending[r] = sample.pending
        self.activity[r] = activity = sample.activity
        self.standing[r], self.left[r] = sample.standing, sample.left
        self.at_gpu[r] = activity is not None and activity.waits_for_gpu
        self.spins[r] = activity is not None and activity.spins
        self.quiet[r] = np.nan if activity is None or not activity.state else activity.quiet
        if activity is not None:
            self.known_until[r] = np.fmax(self.known_until[r], at + activity.ends_in)
        if sample.coordinate is not None:
            self.coordinate[r] = sample.coordinate
            self.sizes = sample.sizes

    def mark(self, rank: int, state: RankState) -> None:
        self.state[rank] = RANK_STATES.index(state)

    def is_in(self, state: RankState) -> npt.NDArray[np.bool_]:
        result: npt.NDArray[np.bool_] = self.state == RANK_STATES.index(state)
        return result
