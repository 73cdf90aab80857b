"""The document of a scripted job, and its health by the controller's own judge."""

import math

from holdfast.controller.health.facts import Facts, Fault, Pause
from holdfast.controller.health.judge import judge
from holdfast.controller.http.facade import Json
from holdfast.controller.shell.health_facts import health_json
from holdfast.controller.state.model import JobStatus
from tests.controller.support.fake_training import FakeTraining


class FakeJob(FakeTraining):
    def __init__(
        self, pp: int = 2, dp: int = 2, tp: int = 2, per_node: int = 4, now: float = 1_790_000_000.0, mesh: bool = True
    ) -> None:
        super().__init__(pp, dp, tp, per_node, now, mesh)
        self.id, self.name = "job-1", "llm-175b" if self.world > 64 else "demo"
        self.priority, self.preempt, self.queued = 0, False, False
        self.share_bytes = 0
        self.shares_with: list[str] = []
        self.ended_at: float | None = None
        self.pause: Json | None = None
        self.facts: Facts | None = None
        """What its health is judged by, instead of what it does."""

    def health_now(self) -> Json:
        if self.facts is not None:
            return health_json(judge(self.facts))
        state = JobStatus(self.job_state)
        open_ = next((one for one in self.known_incidents if one["state"] in ("open", "recovering")), None)
        live = _fault(open_) if open_ else None
        pause = self.pause and Pause(
            self.pause["life"], self.pause["text"], self.pause["since"], self.pause["limit_seconds"], None
        )
        last = self.rows[-1] if self.rows else None
        return health_json(
            judge(
                Facts(
                    now=self.now, state=state, since=self.started, restarts=self.generation - 1, step=self.step,
                    max_steps=5000, step_seconds=last.seconds if last else None, world=self.world, nodes=self.num_nodes,
                    is_queued=self.queued, live=live, pause=pause, safe=self.step,
                )
            )
        )  # fmt: skip

    def document(self) -> Json:
        last = self.rows[-1] if self.rows else None
        return {
            "id": self.id,
            "name": self.name,
            "state": self.job_state,
            "reason": "recovering from " + self.known_incidents[0]["kind"] if self.script else "",
            "priority": self.priority,
            "preempt": self.preempt,
            "share_bytes": self.share_bytes,
            "shares_with": list(self.shares_with),
            "queued": self.queued,
            "generation": self.generation,
            "world_size": self.world,
            "nnodes": self.num_nodes,
            "node_counts": [self.num_nodes],
            "nproc_per_node": self.per_node,
            "program": {"target": "train.py", "args": ["--config", "demo.toml"], "module": False},
            "submitted_at": self.started,
            "started_at": self.started,
            "ended_at": self.ended_at,
            "exit_code": None,
            "step": self.step,
            "loss": last.loss if last else math.nan,
            "tokens_per_s": last.tokens / last.seconds if last else None,
            "step_seconds": last.seconds if last else None,
            "step_planned_seconds": 0.25,
            "planned": {
                "step_seconds": 0.25,
                "ratio": last.seconds / 0.25 if last else None,
                "slower_since": self.started,
                "where": "messages between stages 0 and 1: 50 ms of a step, planned 10 ms",
            },
            "traffic": {
                "planned_bytes": 40e6,
                "off_plan": [{"node": "node1", "text": "node1 sends 84 MB in each step", "since": self.started}],
            },
            "mfu": 0.41 if last else None,
            "restarts": self.generation - 1,
            "goodput": max(0.0, 1 - 0.004 * len(self.known_incidents)),
            "time": {
                "wall": 110.5,
                "productive": 99.0,
                "unsaved": 1.0,
                "queued": 6.0,
                "lost": {"restore": 4.5, "recompute": 0.5 if self.numbers_steps else None},
                "last_hour": 0.96,
                "last_day": 0.971,
            },
            "health": self.health_now(),
            "pause": self.pause,
            "at_risk": {"worker": 0.8, "node": 1.6, "job": 42.0},
            "sizes": [self.pp, self.dp, self.tp] if self.mesh else None,
            "assignment": [{"node": r["name"], "ranks": r["ranks"]} for r in self.node_rows if r["ranks"]],
            "max_steps": 5000,
        }

    def boxes(self) -> list[Json]:
        """Of `models.Layout`: node1 sends four times what the plan says."""
        rows = [(row["name"], row["ranks"]) for row in self.node_rows if row["ranks"]]
        each = self.pp / (len(rows) * self.per_node)
        return [
            {
                "name": name, "inside": f"leaf{i // 4}", "nodes": 1, "ranks": [[ranks[0], ranks[-1]]],
                "stages": [[stage, 1.0] for stage in sorted({int(rank * each) for rank in ranks})],
                "sent": 20e6, "received": 20e6, "sent_measured": 84e6 if name == "node1" else 20.8e6,
                "received_measured": 20.8e6,
            }
            for i, (name, ranks) in enumerate(rows)
        ]  # fmt: skip


def _fault(incident: Json) -> Fault:
    return Fault(
        str(incident["id"]), incident["kind"], incident["culprit"], incident["summary"], incident["opened"],
        action=incident["action"] or "", phase=incident["phases"][-1]["name"],
        is_recovering=incident["state"] == "recovering",
    )  # fmt: skip
