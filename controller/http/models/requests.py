"""What is asked for over HTTP."""

from typing import Annotated

from pydantic import Field

from holdfast.controller.http.models.base import Request


class ProgramSpec(Request):
    target: str = Field(min_length=1, description="Path of a script or, with `module`, name of a module.")
    args: list[str] = Field(default=[], description="Its arguments.")
    module: bool = Field(default=False, description="Start `target` as `python -m` does.")
    cwd: str = Field(default="", description="Working directory on the nodes; empty: the agent's own.")
    env: dict[str, str] = Field(default={}, description="Environment variables to add.")
    hooks: bool = Field(default=True, description="Watch optimizer steps and collectives of unmodified scripts.")
    warm: bool = Field(default=True, description="Fork from the fork server; else start a fresh interpreter.")
    executable: bool = Field(default=False, description="Execute `target` itself, not as a Python script.")
    virtual_local_rank: bool = Field(default=False, description="Each worker sees its GPU only, as local rank 0.")
    log_dir: str = Field(default="", description="Absolute folder on the nodes for files of redirected streams.")
    redirects: str = Field(
        default="0",
        pattern=r"^([0-3]|\d+:[0-3](,\d+:[0-3])*)$",
        description="Streams that go to files there, in torchrun's form: 0 to 3, or by local rank `0:3,1:1`.",
    )
    stdin: str = Field(
        default="",
        description="Standard input of the job's worker, if it has one: this path with `.GENERATION`, a named pipe.",
    )
    preload: list[Annotated[str, Field(max_length=200, pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$")]] = Field(
        default=[],
        max_length=100,
        description="Modules that a fork server of this job imports, so that restarted workers need not. Without "
        "effect on fresh interpreters and executables.",
    )


class JobLimits(Request):
    hang_steps: float | None = Field(
        default=None, gt=0, le=1e6, description="Median steps until a worker that cannot continue counts as dead."
    )
    hang_floor: float | None = Field(default=None, ge=0, le=1e6, description="Seconds added to that.")
    hang_limit_start: float | None = Field(
        default=None, gt=0, le=1e8, description="Seconds, instead of both, before the first step and without steps."
    )
    stuck_limit: float | None = Field(
        default=None, gt=0, le=1e8, description="Seconds without a byte in an operation that all ranks have entered."
    )
    pause_limit: float | None = Field(default=None, gt=0, le=1e8, description="Seconds that a busy pause may last.")
    idle_limit: float | None = Field(default=None, gt=0, le=1e8, description="Seconds that an idle pause may last.")
    idle_limit_start: float | None = Field(
        default=None, gt=0, le=1e8, description="The same before the first step, and where no steps are expected."
    )
    exit_limit: float | None = Field(
        default=None,
        gt=0,
        le=1e8,
        description="Seconds that idle ranks are waited for after another one ended with exit code 0.",
    )
    pause_alert: float | None = Field(default=None, gt=0, le=1e8, description="Seconds until an alert.")


class RestartSpec(Request):
    dump: bool = Field(default=False, description="Record the stacks of all workers in the incident first.")


class Parallel(Request):
    """Parallel sizes, whose product is the number of workers; ranks count through tp, then dp, then pp."""

    pp: int = Field(default=1, ge=1, le=1 << 20)
    dp: int | None = Field(default=None, ge=1, le=1 << 20, description="Left out: what remains.")
    tp: int = Field(default=1, ge=1, le=1 << 20)


class StepBytes(Request):
    """What all ranks together send in a step."""

    pp: float = Field(default=0.0, ge=0, le=1e30)
    dp: float = Field(default=0.0, ge=0, le=1e30)
    tp: float = Field(default=0.0, ge=0, le=1e30)


_ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
"""No control character and no end of a line: it goes into the reason of an incident."""


class SizedLayout(Request):
    nodes: int = Field(ge=1, description="One of `node_counts`.")
    throughput: float = Field(gt=0, le=1, description="Predicted, as a share of that on all `nnodes`.")
    args: list[Annotated[str, Field(pattern=_ONE_LINE)]] = Field(
        default=[], description="Added to the program's arguments when it runs on so many nodes."
    )
    text: str = Field(
        default="",
        max_length=200,
        pattern=_ONE_LINE,
        description="The layout for people, such as `pp=1 dp=6 tp=1`.",
    )
    parallel: Parallel | None = Field(default=None, description="Its groups, by which its nodes are ordered.")


class JobSpec(Request):
    name: str = Field(
        default="job",
        min_length=1,
        max_length=200,
        description="Name on the page and in metrics. If an active job has the same name, a number is appended.",
    )
    program: ProgramSpec
    nnodes: int = Field(default=1, ge=1, description="How many nodes to train on.")
    nproc_per_node: int = Field(default=1, ge=1, description="How many workers on each.")
    max_restarts: int | None = Field(
        default=None, ge=-1, description="Restarts before the job is marked failed; -1: while it advances."
    )
    node_counts: list[int] = Field(default=[], description="Smaller numbers of nodes that the job may run on.")
    max_steps: int | None = Field(default=None, ge=1, description="Last step of the job, if known: for its progress.")
    faults: list[str] = Field(default=[], description='Faults to inject, such as `"kill@20:rank3"`.')
    limits: JobLimits | None = Field(default=None, description="Limits of this job, in place of the controller's.")
    priority: int = Field(default=0, ge=-1000, le=1000, description="Higher values get nodes first.")
    preempt: bool = Field(default=False, description="Take nodes from running jobs with a lower priority.")
    share_bytes: int | None = Field(
        default=None,
        ge=1,
        le=1 << 53,
        description="Share nodes with other jobs that do: the most memory that a worker uses on its device. For "
        "programs whose replicas have unlike parts of an iteration, as the embedded trainer's partial backward.",
    )
    parallel: Parallel | None = Field(default=None, description="Its groups, by which its nodes are ordered.")
    step_bytes: StepBytes | None = Field(default=None, description="If known: what is weighed when they are ordered.")
    layouts: list[SizedLayout] = Field(
        default=[],
        description="One for each of `node_counts`: the job is then re-planned when nodes are lost, or waits for them "
        "where that costs less. Empty: the program finds its own layout.",
    )


class StopSpec(Request):
    grace: float = Field(default=10.0, ge=0, le=3600, description="Seconds from SIGTERM to SIGKILL.")


class FaultSpec(Request):
    fault: str = Field(
        min_length=1,
        description="`KIND[@STEP]:TARGET`; without a step at once.",
        examples=["kill@20:rank3", "stop:node1"],
    )
