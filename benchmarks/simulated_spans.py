"""Made-up spans of a job that runs 1F1B: see `controller.simulation.step_spans`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.controller.simulation.step_spans import Culprit, Timing, spans_of
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.plan.plan import Action, Layers, Mesh, Op, Plan
from holdfast.plan.schedules.one_f_one_b import one_f_one_b
from holdfast.trainer.pipeline.transfers import add_transfers

__all__ = ["Culprit", "Job", "simulate"]


@dataclass
class Job(Timing):
    def plan(self) -> Plan:
        orders = add_transfers(one_f_one_b(self.pp, self.micro_batches), list(range(self.pp)))
        whole = []
        for p, order in enumerate(orders):
            head = (Action(Op.LOAD, p),) if p in (0, self.pp - 1) else ()
            tail = (Action(Op.REDUCE_GRAD, p), Action(Op.STEP, p))
            whole.append((*head, *order, *tail))
        stages = tuple(Layers(p, p + 1, p) for p in range(self.pp))
        return Plan("1f1b", Mesh.of(pp=self.pp, dp=self.dp, tp=self.tp), stages, self.micro_batches, tuple(whole))


def simulate(job: Job, culprits: Sequence[Culprit], steps: int = 1, seed: int = 0) -> tuple[SpanTable, Plan]:
    """All spans of so many steps, and the plan behind them."""
    plan = job.plan()
    return spans_of(job, plan, culprits, steps, seed), plan
