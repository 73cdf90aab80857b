"""A job that trains, faults on command and recovers, scripted, at any mesh size: the source of `fake_facade`.

Time moves by `tick`: tests call it with what they need, `live` calls it from the wall clock for a browser to watch.
"""

import asyncio
import math
import random
from collections import deque

from holdfast.controller.http.facade import Json
from holdfast.controller.state.ledger import StepRow
from holdfast.wire.types import NodeState
from tests.controller.support.fake_node import make_node

STATES = ["running", "starting", "waiting", "exited", "hung", "stopped", "lost"]
RUNNING, STARTING, WAITING, EXITED = range(4)
PHASES = ["start", "setup", "compile", "restore", "train", "checkpoint", "eval", "done"]
# What follows a fault: name of the phase, how long it lasts, what the ranks are in meanwhile.
SCRIPT = [
    ("detect", 0.4, WAITING, "train"),
    ("stop", 0.7, WAITING, "train"),
    ("start", 1.6, STARTING, "setup"),
    ("restore", 0.9, STARTING, "restore"),
    ("catch up", 1.2, RUNNING, "train"),
]


class FakeTraining:
    """The state, and what time and faults make of it."""

    def __init__(
        self, pp: int = 2, dp: int = 2, tp: int = 2, per_node: int = 4, now: float = 1_790_000_000.0, mesh: bool = True
    ) -> None:
        self.pp, self.dp, self.tp, self.per_node, self.mesh = pp, dp, tp, per_node, mesh
        self.world = pp * dp * tp
        self.num_nodes = math.ceil(self.world / per_node)
        self.now = self.started = now
        self.random = random.Random(7)
        self.serial = 1
        self.base_s = 0.25
        self.step = -1
        self.due = now + self.base_s
        self.generation = 1
        self.numbers_steps = True
        """Whether it is known with which step a restarted program goes on."""
        self.job_state: str | None = "running"
        self.rows: deque[StepRow] = deque(maxlen=20_000)
        self.superseded: list[StepRow] = []
        self.log: list[Json] = []
        self.known_incidents: list[Json] = []
        self.script: list[tuple[str, float, int, str]] = []
        self.phase_ends = 0.0
        self.slow = {self.world - 2: 1.35}
        self.rank_state = [RUNNING] * self.world
        self.rank_phase = [PHASES.index("train")] * self.world
        self.rank_seconds: list[float | None] = [None] * self.world
        self.node_rows = [make_node(i, per_node, self.world) for i in range(self.num_nodes + 1)]
        self.node_rows[-1] |= {"state": NodeState.SPARE, "ranks": []}

    # --- time ---------------------------------------------------------------------------------------------

    def tick(self, seconds: float) -> None:
        self.now += seconds
        if self.script:
            self._recover()
        elif self.job_state == "running":
            while self.due <= self.now:
                self._finish_step()
        # Slow to write at 12,288 ranks, and the page must not be starved by its own fake.
        for row in self.random.sample(self.node_rows, min(64, len(self.node_rows))):
            row["frame_age"] = self.random.uniform(0.0, 0.1)
            row["tx_bytes_per_s"] = self.random.uniform(9e9, 1.1e10)
            row["rx_bytes_per_s"] = self.random.uniform(9e9, 1.1e10)
        self.serial += 1

    async def live(self, period: float = 0.1) -> None:
        while True:
            await asyncio.sleep(period)
            self.tick(period)

    def warm_up(self, steps: int) -> None:
        for _ in range(steps):
            self.now = self.due
            self._finish_step(spread=False)
        self._spread()
        self.serial += 1

    def _finish_step(self, spread: bool = True) -> None:
        self.step += 1
        noise = self.random.gauss(0, 1)
        loss = 1.9 + 9 / (1 + self.step / 40) ** 0.7 + 0.05 * noise
        seconds = self.base_s * (1 + 0.02 * abs(noise)) + (0.3 if self.random.random() < 0.004 else 0)
        mfu, norm = 0.41 / (seconds / self.base_s), 0.8 + 2 / (1 + self.step / 20)
        self.rows.append(StepRow(self.step, loss, seconds, 2048 * self.dp, self.due, self.generation, mfu, norm))
        self.due += seconds
        if spread:
            self._spread()

    def _spread(self) -> None:
        gauss = self.random.gauss
        self.rank_seconds = [self.base_s * (1 + 0.03 * abs(gauss(0, 1))) for _ in range(self.world)]
        for rank, factor in self.slow.items():
            self.rank_seconds[rank] = self.base_s * factor

    # --- faults -------------------------------------------------------------------------------------------

    def fault(self, rank: int, kind: str = "worker-killed") -> Json:
        node = self.node_rows[rank // self.per_node]["name"]
        text = f"rank {rank} on {node} was ended by SIGKILL"
        finding = {
            "kind": kind,
            "severity": "critical",
            "subject": f"rank{rank}",
            "text": text,
            "at": self.now,
            "evidence": {"signal": 9, "pid": 4242, "tail": "step 118 done\n<b>not markup</b>"},
        }
        incident: Json = {
            "id": f"i{len(self.known_incidents) + 1}",
            "kind": kind,
            "culprit": f"rank{rank}",
            "severity": "critical",
            "state": "open",
            "summary": text,
            "opened": self.now,
            "closed": None,
            "action": None,
            "reason": None,
            "detect_s": None,
            "recover_s": None,
            "source": None,
            "restore_s": None,
            "restored_bytes": None,
            "restore_sent_bytes": None,
            "generation_from": self.generation,
            "generation_to": None,
            "step_at_fault": self.step,
            "step_resumed": None,
            "phases": [],
            "stacks": None,
            "findings": [finding],
        }
        self.known_incidents.insert(0, incident)
        self.rank_state = [WAITING] * self.world
        self.rank_state[rank] = EXITED
        self.job_state = "recovering"
        self.script = list(SCRIPT)
        self._begin(self.script[0])
        self.serial += 1
        return incident

    def recover(self) -> None:
        """To the end of the script at once."""
        while self.script:
            self.now = self.phase_ends
            self._recover()
        self.serial += 1

    def _begin(self, phase: tuple[str, float, int, str]) -> None:
        name, lasts, state, doing = phase
        self.known_incidents[0]["phases"].append({"name": name, "start": self.now, "end": None})
        self.phase_ends = self.now + lasts
        if name == "start":
            self.generation += 1
            self.known_incidents[0] |= {
                "state": "recovering",
                "action": "restart the workers in place",
                "reason": "the node is healthy and this is the first exit of the rank",
                "detect_s": 0.4,
            }
        if state != WAITING:
            self.rank_state = [state] * self.world
            self.rank_phase = [PHASES.index(doing)] * self.world

    def _recover(self) -> None:
        incident = self.known_incidents[0]
        if self.now < self.phase_ends:
            return
        incident["phases"][-1]["end"] = self.phase_ends
        self.script.pop(0)
        if self.script:
            self._begin(self.script[0])
            return
        resumed = max(-1, self.step - 3)
        incident |= {
            "state": "closed",
            "closed": self.now,
            "recover_s": self.now - incident["opened"] - 0.4,
            "source": "memory",
            "restore_s": 0.4,
            "restored_bytes": 4096,
            "restore_sent_bytes": 8192,
            "generation_to": self.generation,
            "step_resumed": resumed if self.numbers_steps else None,
        }
        while self.rows and self.rows[-1].step > resumed:
            self.superseded.append(self.rows.pop())
        self.superseded.sort(key=lambda row: (row.generation, row.step))
        self.step, self.due, self.job_state = resumed, self.now + self.base_s, "running"
