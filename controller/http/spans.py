"""A job's spans over HTTP: which ranks are slow, which wait, and the timeline of any steps."""

import io
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from holdfast.base.bounds import MAX_COUNT, MAX_SPAN_STEP
from holdfast.base.errors import UsageError
from holdfast.base.json_text import encode
from holdfast.controller.http.answer import answer, small
from holdfast.controller.http.facade import Facade, Json
from holdfast.diagnostics.blame import report as blame_report
from holdfast.diagnostics.timeline import timeline
from holdfast.diagnostics.timeline.beside import beside
from holdfast.diagnostics.timeline.lanes import lanes

First = Annotated[int, Query(ge=-1, le=MAX_SPAN_STEP, description="First step; -1: the oldest in memory.")]
Last = Annotated[
    int, Query(ge=-1, le=MAX_SPAN_STEP, description="Last step; -1: the newest that all ranks have reported.")
]


class SlowPoints(BaseModel):
    at: list[float]
    share: list[float] = Field(description="Of the step.")
    ratio: list[float | None] = Field(description="Over its peers.")


class Culprit(BaseModel):
    """Which ranks are slow. Seconds are per step."""

    model_config = ConfigDict(extra="allow")
    kind: str = Field(
        description="compute, link, data loading, garbage collection, host interference, waiting, imbalance."
    )
    rank: int = Field(description="-1: the plan itself.")
    peer: int = Field(description="The other end of a link, or -1.")
    node: str
    what: str
    ratio: float | None = Field(description="Over its peers: 1.1 is 10% slower.")
    z: float | None = Field(description="How many usual spreads of its peers it is above their median.")
    peers: int = Field(description="How many it was compared with.")
    self_s: float
    cost_s: float = Field(description="Its part of the step's account: saved if it were as fast as its peers.")
    share: float = Field(description="The same as a share of the step.")
    cost: str = Field(description="The same as the account shows it.")
    what_if_s: float = Field(description="Duration of the step in that case.")
    induced_s: float = Field(description="Saved waiting time of all other ranks.")
    victims: int
    text: str = Field(description="Summary in one line.")
    works: dict[str, float] = Field(default={}, description="Ratio over its peers by each work that is too slow.")
    where: str = Field(default="", description="The two spans between which it is slow, if outside of all.")
    every: float = Field(default=0.0, description="It takes longer in one of so many steps; 0: in all.")
    burst_s: float = Field(default=0.0, description="By so much in one of these.")
    by_design: bool = Field(
        default=False, description="Since the job's first steps, so caused by the program: for information."
    )
    since: float | None = Field(
        default=None, description="Unix time from which the controller's looks named it without a pause."
    )
    history: SlowPoints | None = Field(default=None, description="What those looks found, oldest first.")


class AccountPart(BaseModel):
    kind: str = Field(description="compute, other, communication, imbalance, waiting (for a culprit), jitter.")
    name: str = Field(description="In words.")
    seconds: float
    share: float = Field(description="Of the step.")
    figure: str = Field(description="As shown; together that of the step. Empty: less than its last digit.")
    culprit: int = Field(description="Index into `culprits`; -1: none.")


class StepAccount(BaseModel):
    """Where the seconds of a step go. The parts add up to `step_s`."""

    text: str = Field(description="The whole account in one line.")
    step: str = Field(description="Figure of the step.")
    unit: str = Field(description="Unit of the figures.")
    parts: list[AccountPart]


class BlameBrief(BaseModel):
    """What the controller's own last look found."""

    model_config = ConfigDict(extra="allow")
    job: str
    name: str = Field(description="The job's.")
    first: int
    last: int
    steps: int
    step_s: float
    ideal_s: float = Field(description="The step with every rank as fast as the median of its peers.")
    account: StepAccount
    culprits: list[Culprit]


class Blame(BlameBrief):
    ranks: Json = Field(
        description="Columns by rank. compute_s, other_s (input, checkpoints, host), transfer_s, named_s (waiting "
        "for culprits), plan_s (waiting due to the plan) and jitter_s add up to its step; work_s, wait_s, victim_s are "
        "sums of them; self_s, induced_s: beyond its peers, and what others wait for it; self_ratio: null by noise."
    )
    path: list[Json] = Field(description="The critical path of one step, its longest parts first.")
    course: list[Json] = Field(description="The same in the order of time: parts that begin where the last one ended.")
    incomplete: list[int] = Field(description="Ranks with missing spans.")


class Heat(BaseModel):
    """Rows go by `ranks` or `nodes`, columns by `phases` or `steps`. A ratio of 1.1 is 10% slower than the median of
    the peers; null: none."""

    model_config = ConfigDict(extra="allow")
    job: str
    name: str = Field(description="The job's.")
    first: int
    last: int
    ranks: list[int]
    node_of: list[str] = Field(description="Each rank's node.")
    phases: list[str] = Field(description="Kinds of own work, then other, transfer, wait.")
    seconds: list[list[float | None]] = Field(description="Seconds of each rank in each phase, per step.")
    ratio: list[list[float | None]] = Field(description="The same over the peers'; null for waiting.")
    nodes: list[str]
    steps: list[int]
    by_step: list[list[float | None]] = Field(description="Own work of each node's slowest rank over its peers'.")
    worst: list[int] = Field(description="The 64 ranks that are slowest in most steps, from the worst on.")
    worst_by_step: list[list[float | None]] = Field(description="Own work of each of these over its peers', by step.")


class Lanes(BaseModel):
    """Columns: entry i of each is one span. Times in microseconds since `zero`."""

    model_config = ConfigDict(extra="allow")
    job: str
    zero: float = Field(description="Unix seconds.")
    first: int
    last: int
    ranks: list[int] = Field(description="Ranks with spans in this answer.")
    left_out: int = Field(description="Requested ranks that did not fit.")
    planned: bool = Field(description="The job has reported a plan, from which its steps can be predicted.")
    kinds: list[str]
    groups: list[str]
    rank: list[int]
    kind: list[int] = Field(description="Index into `kinds`.")
    group: list[int] = Field(description="Index into `groups`: the ranks of a collective or a message.")
    step: list[int]
    stage: list[int] = Field(description="Of the pipeline; -1: none.")
    micro_batch: list[int] = Field(description="-1: none.")
    start: list[int]
    took: list[int]
    waited: list[int] = Field(description="Of `took`, from its start: waiting for the last peer.")
    bytes: list[int] = Field(description="That went over the network, as the program reported; 0: none, or unknown.")
    arrows: dict[str, list[int]] = Field(description="Columns: name (0 message, 1 last to arrive), and both ends.")


class LateRank(BaseModel):
    """A rank against the prediction. Seconds; below 0: earlier. null, and empty: none of its spans is there."""

    rank: int
    lane: int = Field(description="Index of its predicted lane.")
    late_s: float | None = Field(description="By how much the computation or sum ended later that was latest.")
    late: str = Field(description="Which that is, in words.")
    late_id: str = Field(description="Its id in the plan.")
    own_s: float | None = Field(
        description="The largest delay that began on this rank: from when an action could have begun, by what was "
        "measured of those before it, to its end, less its predicted duration."
    )
    own: str = Field(description="Which action that is, in words.")
    own_id: str
    cause: str = Field(
        description="Of that delay: longer, message (late), idle (its rank did or awaited something else); or empty."
    )
    peer: int = Field(description="The rank that sent the late message; -1: none.")
    text: str = Field(description="That delay in one line.")


class ActionTime(BaseModel):
    """A time that the prediction is made of."""

    kind: str
    stage: int = Field(description="Of a message the stage that receives it.")
    seconds: float
    samples: int = Field(
        description="Spans behind it; of a message those whose receiver was waiting, of sums and gathers all."
    )


class Predicted(BaseModel):
    """A step beside what the job's plan predicts for it. Columns: entry i of each is one predicted span."""

    job: str
    name: str = Field(description="The job's.")
    step: int
    times_of: int = Field(description="The step whose medians are the times.")
    schedule: str
    own_order: bool = Field(description="Ranks took another order than the plan's, and that is predicted.")
    zero: float = Field(description="Unix seconds: the start of the step's first computation, in both.")
    measured_s: float = Field(description="From there to the end of the last computation or sum.")
    predicted_s: float
    measured_bubble: float = Field(description="Share of that time in which a rank computes nothing, over all ranks.")
    predicted_bubble: float
    incomplete: list[int] = Field(description="Ranks that lack spans of computations: lengths then say nothing.")
    left_out: int = Field(description="Ranks that took one of too many orders to be predicted.")
    text: str = Field(description="What is missing, or the rank with the largest delay of its own, in one line.")
    ranks: list[LateRank]
    times: list[ActionTime]
    kinds: list[str]
    lane: list[int]
    kind: list[int] = Field(description="Index into `kinds`.")
    stage: list[int]
    micro_batch: list[int] = Field(description="-1: none.")
    turn: list[int] = Field(description="Which part of a micro-batch, or which of a stage's sums.")
    start: list[int] = Field(description="Microseconds since `zero`.")
    took: list[int] = Field(description="Microseconds.")


MOST_RANKS = 4096
"""That one may name in a question."""


def parse_ranks(text: str) -> list[int]:
    """ "0-3,8" -> [0, 1, 2, 3, 8]. UsageError for what is none."""
    found: set[int] = set()
    for part in filter(None, text.replace(" ", "").split(",")):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or part.endswith("-"):
            raise UsageError(f"ranks={text!r}: {part!r} is neither a rank nor a range; write 0-3,8")
        low, high = int(first), int(last or first)
        if high - low >= MOST_RANKS or len(found) >= MOST_RANKS:
            raise UsageError(f"ranks={text!r}: more than {MOST_RANKS:,} ranks at once; request fewer")
        found.update(range(low, high + 1))
    return sorted(found)


def routes(facade: Facade, reads: Callable[..., Awaitable[str]], spans_of: Callable[..., Awaitable[str]]) -> APIRouter:
    """`reads` and `spans_of` are dependencies that give a job's id: of one in memory, and of any that has spans."""
    api = APIRouter(tags=["look"])
    Job = Annotated[str, Depends(spans_of)]

    @api.get("/blame", response_model=Blame, summary="Slow ranks, waiting ranks, and the cost")
    async def blame(request: Request, job: Job, first: First = -1, last: Last = -1) -> Response:
        read = facade.spans(job, first, last)
        return await answer(request, lambda: encode(blame_report.report(*read())))

    @api.get("/blame/heat", response_model=Heat, summary="Heat maps: rank by phase, node by step")
    async def heat(request: Request, job: Job, first: First = -1, last: Last = -1) -> Response:
        read = facade.spans(job, first, last)
        return await answer(request, lambda: encode(blame_report.heat_report(*read())))

    @api.get("/blame/newest", response_model=BlameBrief | None, summary="The last result, at no cost")
    async def newest_blame(id: Annotated[str, Depends(reads)]) -> Response:
        return small(facade.newest_blame(id))

    @api.get("/spans", response_model=Lanes, summary="Spans of some ranks as columns, with the arrows between them")
    async def spans(
        request: Request,
        job: Job,
        first: First = -1,
        last: Last = -1,
        ranks: Annotated[str, Query(max_length=400, description='Ranks, as "0-3,8"; empty: all that fit.')] = "",
        steps: Annotated[int, Query(ge=0, le=1000, description="Only this many last steps; 0: all that fit.")] = 0,
        generation: Annotated[
            int, Query(ge=-1, le=MAX_COUNT, description="As they were before any later one; -1: in the newest.")
        ] = -1,
    ) -> Response:
        chosen = parse_ranks(ranks)
        read = facade.spans(job, first, last)
        return await answer(request, lambda: encode(lanes(*read(), ranks=chosen, steps=steps, generation=generation)))

    @api.get("/spans/predicted", response_model=Predicted, summary="A step beside what the job's plan predicts for it")
    async def predicted(
        request: Request,
        job: Job,
        step: Annotated[
            int, Query(ge=-1, le=MAX_SPAN_STEP, description="-1: the newest that all ranks have reported.")
        ] = -1,
        times_of: Annotated[
            int, Query(ge=-1, le=MAX_SPAN_STEP, description="Step whose medians are the times; -1: the same.")
        ] = -1,
        ranks: Annotated[str, Query(max_length=400, description='Ranks, as "0-3,8"; empty: all.')] = "",
    ) -> Response:
        chosen = parse_ranks(ranks)
        read = facade.spans(job, step, step)
        base = facade.spans(job, times_of, times_of) if times_of >= 0 else None

        def compare() -> bytes:
            table, shape = read()
            return encode(beside(table, shape, None if base is None else lambda: base()[0], chosen))

        return await answer(request, compare)

    @api.get("/timeline", response_model=Json, summary="The steps as a trace for ui.perfetto.dev")
    async def trace(request: Request, job: Job, first: First = -1, last: Last = -1) -> Response:
        read = facade.spans(job, first, last)

        def write() -> bytes:
            text = io.StringIO()
            table, shape = read()
            timeline.write(table.newest_generation(), shape, text)
            return text.getvalue().encode()

        return await answer(request, write)

    return api
