"""Spans of a made-up job, as its workers would have recorded them."""

from benchmarks.simulated_spans import Culprit, Job, simulate
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.wire.plans import encode_plan
from tests.controller.support.fake_job import FakeJob


def traced(job: FakeJob) -> tuple[SpanTable, JobShape]:
    """Spans of some steps of its mesh, with its slow ranks."""
    small = job.world <= 64
    simulated = Job(job.pp, job.dp, job.tp, micro_batches=8 if small else job.pp)
    culprits = [Culprit(rank, "compute", factor - 1) for rank, factor in job.slow.items()]
    table, plan = simulate(simulated, culprits, 6 if small else 1, 1)
    names = tuple(str(row["name"]) for row in job.node_rows if row["ranks"])
    return table, JobShape(job.id, job.name, names, job.per_node, encode_plan(plan))
