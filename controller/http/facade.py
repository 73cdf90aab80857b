"""What the HTTP side may request of the controller: methods that give plain JSON-able data.

The docstring of each names the model of what it gives: `models`, `jobs`, `diagnose`, `spans` and `metrics_models`
describe the fields, and nothing else does. Data is not passed through the models (12,288 ranks): a test holds the
answers of a real controller to them, for every route. NaN means an unknown number, as None does: JSON gets null for
both.

`id` is a job's id. Where it is empty, a read is about the newest job, and a command about the only active one: with
none or several of them it raises Conflict. A read of an unknown id raises KeyError.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from holdfast.controller.state.log_wanted import EVERY_LINE, LogWanted
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable

Json = dict[str, Any]


class Facade(Protocol):
    """Reads are cheap, never block and are called on the controller's own event loop."""

    def status(self) -> Json:
        """`models.Status`."""

    def nodes(self) -> list[Json]:
        """`models.Node` of each."""

    def jobs(self) -> list[Json]:
        """`models.JobBrief` of active jobs in the order in which they get nodes, then of the ended ones that are still
        in memory, the newest first."""

    def job(self, id: str = "") -> Json | None:
        """`models.Job`; None before the first job."""

    def health(self, id: str = "") -> Json | None:
        """`models.Health` of the job; None before the first job."""

    def hour(self, since: float = 0.0, id: str = "") -> Json | None:
        """`jobs.Hour` of the job: samples of the last hour after `since`; None before the first job."""

    def day(self, until: float | None = None, id: str = "") -> Callable[[], Json]:
        """`past.days.Day` of the 24 hours before `until` (else now). What is returned reads it, in any thread. Conflict
        before the first job."""

    def then(self, at: float, id: str = "") -> Callable[[], Json]:
        """`past.days.Then`. What is returned reads it, in any thread, and raises Conflict where nothing is kept of that
        time. Conflict before the first job."""

    def plan(self, id: str = "") -> Json | None:
        """`models.Plan` of the job, once its rank 0 has reported it."""

    def layout(self, id: str = "") -> Json | None:
        """`models.Layout` of the job, once its rank 0 has reported a plan with the bytes of its links."""

    def ranks(self, id: str = "") -> Json:
        """`models.Ranks`."""

    def steps(self, since: int = -1, limit: int = 5000, id: str = "") -> Json:
        """`models.Steps` of the job's finished steps after `since`, at most the newest `limit`."""

    def superseded_steps(self, limit: int = 5000, id: str = "") -> Json:
        """`models.Steps` that earlier generations did and that were done again, or will be: by generation and step."""

    def incidents(self, id: str = "") -> list[Json]:
        """`models.Incident` of one job; without an id of all of them, also those of nodes. Newest first."""

    def earlier(self, incident: str) -> list[Json]:
        """`routes.EarlierIncident` of each that had the same node, rank or traceback. KeyError: no such incident."""

    def spans(self, job: str, first: int, last: int) -> Callable[[], tuple[SpanTable, JobShape]]:
        """Spans of the steps `first` to `last` (-1: as far as there are any) of a job, also of one that is only on
        disk any more; "": the newest. What is returned reads them, in any thread. NotFound where there are none,
        Conflict where there are none yet."""

    def newest_blame(self, id: str = "") -> Json | None:
        """`spans.BlameBrief` of the watcher's last look at the job's spans; None before the first."""

    def node_history(self, name: str) -> Json:
        """`models.NodeHistory`. KeyError when there is no such node."""

    def traffic(self, node: str, seconds: float = 5.0) -> Json:
        """`models.Traffic` of the last seconds. KeyError when there is no such node."""

    def metrics(self) -> Json:
        """`metrics_models.ControllerFigures`: what /metrics needs of the controller beyond the above."""

    def job_metrics(self) -> list[Json]:
        """`metrics_models.JobFigures` of each active job and of the newest. No two of them have the same name."""

    def version(self) -> int:
        """Goes up with every change that a viewer could see."""

    def log_lines(self, job: str, wanted: LogWanted = EVERY_LINE) -> AsyncIterator[Json]:
        """`streams.LogLine` of the wanted lines: what is kept, then live ones; ends when the job has ended and all was
        delivered."""

    def log_same(self, job: str, text: str, generation: int | None = None) -> Callable[[], Json]:
        """`streams.SaidBy`: which ranks said this line, but for its numbers, of all lines that are kept. What is
        returned looks, in any thread."""

    async def submit(self, spec: Json) -> str:
        """Submit the job of a `models.JobSpec`, and give its id. It waits in the queue until there are nodes for it.
        UsageError when it cannot be."""

    async def stop(self, grace: float = 10.0, id: str = "") -> None:
        """Stop an active job by hand."""

    async def restart(self, dump: bool = False, id: str = "") -> None:
        """Restart a running job; `dump`: keep its workers' stacks with the incident. Conflict: it does not run."""

    async def inject(self, fault: str, id: str = "") -> Json:
        """`models.Injected` of `KIND[@STEP]:TARGET`, for example "kill@20:rank3"; without a step it is done at once."""

    async def stacks(self, id: str = "") -> Json:
        """`models.Stacks` of all workers of the job, as soon as all agents have answered or five seconds have passed.
        Conflict when it does not run."""

    async def checkpoint(self, id: str = "") -> None:
        """Request a checkpoint of the job's next step. Conflict when it is not training."""

    async def diagnose(self, spec: Json) -> str:
        """Run the checks of a `diagnose.DiagnoseSpec`, and give its id. UsageError when it cannot be, Conflict
        when it cannot be now."""

    def diagnoses(self) -> list[Json]:
        """`diagnose.Diagnosis` of each that runs or is remembered, newest first."""

    async def acknowledge(self, id: str) -> None:
        """End the notices of a failed job. UsageError when there are none."""

    async def notify_test(self, receiver: str = "") -> list[Json]:
        """Send a test message, and give `notifications.NotifyAnswer` of each receiver. KeyError: no such receiver."""

    async def evict(self, node: str) -> None:
        """Evict a node at once; a job that has ranks there restarts without it. NotFound: no such node."""

    async def cordon(self, node: str, on: bool) -> None:
        """Leave a node out of future generations, or let it in again. NotFound when there is no such node."""
