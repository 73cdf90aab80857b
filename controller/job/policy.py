"""From an incident's cause to what is done about it, with the reason as text. The tables are the policy.

`detectors/base/findings.toml` says what a finding of each kind asks for first. `decide` goes through `RULES` from the
top: what is known besides (restart attempts without progress, node failures, what diagnosis said) may ask for another
step of the ladder.
"""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.controller.detectors.base.moves import Fault as Fault  # as: other modules write `policy.Move`
from holdfast.controller.detectors.base.moves import Move as Move
from holdfast.controller.detectors.base.table import FindingRow, rows
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Job, Options
from holdfast.diagnostics.hang.graph import Reason
from holdfast.diagnostics.hang.proof import Cause
from holdfast.diagnostics.hang.stillness import Liveness
from holdfast.wire import types as t

RECOVERS = frozenset({Move.RESTART, Move.DIAGNOSE, Move.EVICT, Move.SHRINK, Move.GROW, Move.ROLL_BACK, Move.REQUEUE})
"""Moves that end one generation and start the next."""


@dataclass(frozen=True, slots=True)
class Case:
    """Input of a decision. Counts include the cause itself."""

    cause: Finding
    options: Options
    restarts: int = 0
    max_restarts: int = -1
    fruitless: int = 1
    """Restart attempts in a row without progress."""
    fruitless_node: str = ""
    """The node at which all of them ended; empty when they differ."""
    stillborn: int = 0
    """Restart attempts in a row that the program itself ended before its first step, with any error."""
    node: str = ""
    """The node of the finding; empty if it has none."""
    node_failures: int = 0
    """Node failures of this node within the window."""
    evictions: int = 0
    """Nodes evicted within the last hour."""
    tested: bool = False
    """Whether it was diagnosed within the last hour."""
    replaceable: bool = False
    """A spare is available, or the job may run on fewer nodes."""
    stored: bool = False
    """Whether the store has a checkpoint of this job."""
    goes_back: bool = False
    """Whether the operator configured a rollback for this kind, which otherwise only alerts."""
    no_room: bool = False
    """Whether a worker ended for lack of disk space on a node with a full disk."""
    went_back: bool = False
    """Whether the job rolled back for the same steps before."""
    worked_before: bool = False
    """Whether the job did a step in an earlier restart attempt, and none in this one."""
    refused_layout: bool = False
    """Whether it was started with the layout planned for fewer nodes, and refused it."""

    @property
    def row(self) -> FindingRow:
        return rows()[self.cause.kind]

    @property
    def limit(self) -> int:
        """Restart attempts without progress after which the job is marked failed."""
        return self.options.restart_attempts if self.row.fault is Fault.PROGRAM else self.options.restart_attempts_fault


@dataclass(frozen=True, slots=True)
class Rule:
    """`when` as text for people, and as it is computed; `reason` becomes the incident's."""

    when: str
    holds: Callable[[Case], bool]
    move: Move
    reason: Callable[[Case], str]


def _again(case: Case) -> str:
    same = "the same traceback" if case.cause.kind is t.FindingKind.WORKER_EXCEPTION else case.cause.kind.value
    return f"{same} {case.fruitless} times without progress: {case.cause.text}"


RULES: tuple[Rule, ...] = (
    Rule(
        "an operator evicted the node",
        lambda c: c.cause.kind is t.FindingKind.EVICTION,
        Move.EVICT,
        lambda c: "evicted by an operator",
    ),
    Rule(
        "a worker exited with code 2, as programs do that refuse their arguments or settings; unless only an earlier "
        "attempt did a step, or the arguments were those of a layout planned for fewer nodes",
        lambda c: refuses_input(c.cause) and not (c.worked_before or c.no_room or c.refused_layout),
        Move.STOP,
        lambda c: f"exit code 2 is final: {c.cause.text}",
    ),
    Rule(
        "a pause reached its limit, and the job's `max_restarts` is used up: no pause marks a job failed",
        lambda c: (is_pause(c.cause) or is_network_wait(c.cause)) and 0 <= c.max_restarts <= c.restarts,
        Move.ALERT,
        lambda c: f"the job has used its {c.max_restarts} restarts; a pause does not mark it failed",
    ),
    Rule(
        "the job's `max_restarts` is used up",
        lambda c: 0 <= c.max_restarts <= c.restarts and c.cause.kind is not t.FindingKind.RESTART,
        Move.STOP,
        lambda c: f"the job has used its {c.max_restarts} restarts",
    ),
    Rule(
        "this node should be evicted, but too many were within the hour to be the cause (`max_evictions`)",
        lambda c: _should_go(c) and c.evictions >= c.options.max_evictions and c.fruitless < c.limit,
        Move.RESTART,
        lambda c: f"{c.node} should be evicted, but {c.evictions} nodes were within the hour: look for a shared cause",
    ),
    Rule(
        "the node is certainly faulty",
        lambda c: c.row.fault is Fault.BROKEN and bool(c.node),
        Move.EVICT,
        lambda c: f"{c.node} is faulty: {c.cause.text}",
    ),
    Rule(
        "a worker ended for lack of disk space on a node with a full disk, and another node is available",
        lambda c: c.no_room and bool(c.node) and c.replaceable,
        Move.EVICT,
        lambda c: f"a disk of {c.node} is full: moving to another node; {c.cause.text}",
    ),
    Rule(
        "the node has no connectivity with its peers, and another node is available",
        lambda c: _is_cut_off(c),
        Move.EVICT,
        lambda c: f"{c.node} has no connectivity with its peers: using another node",
    ),
    Rule(
        "the `node_failures`-th failure of the same node within a day, and another node is available",
        lambda c: _should_go(c),
        Move.EVICT,
        lambda c: f"{_ordinal(c.node_failures)} failure of {c.node} within a day: using another node",
    ),
    Rule(
        "the restart attempts of the kind are used up, all ended at one node, and another node is available",
        lambda c: c.fruitless == c.limit and c.replaceable and c.row.fault is Fault.NODE and bool(c.fruitless_node),
        Move.EVICT,
        lambda c: f"{c.fruitless} restart attempts ended at {c.fruitless_node} without progress: using another node",
    ),
    Rule(
        "the restart attempts of the kind are used up, without progress",
        lambda c: c.fruitless >= c.limit,
        Move.STOP,
        _again,
    ),
    Rule(
        "the program itself ended `restart_attempts_fault` attempts in a row before their first step, with any error",
        lambda c: c.row.fault is Fault.PROGRAM and c.stillborn >= c.options.restart_attempts_fault,
        Move.STOP,
        lambda c: f"{c.stillborn} restart attempts in a row ended before the first step, the last with: {c.cause.text}",
    ),
    Rule(
        "the loss is NaN again, without a good step since the restart, and the store has a checkpoint",
        lambda c: c.cause.kind is t.FindingKind.LOSS_NONFINITE and c.fruitless >= 2 and c.stored,
        Move.ROLL_BACK,
        lambda c: f"the newest state leads to it again: {c.cause.text}",
    ),
    Rule(
        "the second failure of the same node within a day, not tested within the hour, and another node is available",
        lambda c: (
            c.row.fault is Fault.NODE and bool(c.node) and c.node_failures >= 2 and c.replaceable and not c.tested
        ),
        Move.DIAGNOSE,
        lambda c: f"{_ordinal(c.node_failures)} failure of {c.node} within a day: testing it before it trains again",
    ),
)
"""For kinds whose first move restarts the job: the first rule that holds, else the kind's own move."""


def _should_go(case: Case) -> bool:
    if not case.node or case.cause.secondary:
        return False  # a node is never evicted on the evidence of another
    if case.row.fault is Fault.BROKEN or _is_cut_off(case):
        return True
    return case.row.fault is Fault.NODE and case.replaceable and case.node_failures >= case.options.node_failures


def refuses_input(cause: Finding) -> bool:
    """argparse, click and Holdfast's trainer exit with 2 for wrong input, which a restart does not change."""
    return cause.kind is t.FindingKind.WORKER_EXIT and cause.exit_code == 2


def _is_cut_off(case: Case) -> bool:
    return case.cause.kind is t.FindingKind.NODE_CUT_OFF and bool(case.node) and case.replaceable


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


@dataclass(frozen=True, slots=True)
class Decision:
    move: Move
    reason: str


def decide(case: Case) -> Decision:
    move = case.row.first_move
    if case.goes_back:
        return _if_it_helps(case)
    if move not in RECOVERS:
        return Decision(move, _WHY[move])
    for rule in RULES:
        if rule.holds(case):
            return Decision(rule.move, rule.reason(case))
    if not counts_as_try(case.cause):
        return Decision(move, "restarting from the newest complete state; counts as no attempt and no node failure")
    return Decision(move, f"restarting from the newest complete state (attempt {case.fruitless} of {case.limit})")


def _if_it_helps(case: Case) -> Decision:
    """Roll back because the operator asked for it: never in a loop, and never the end of a job that trains."""
    if case.went_back:
        return Decision(Move.ALERT, f"the job rolled back for it before, and it repeated: {case.cause.text}")
    if not case.stored:
        return Decision(Move.ALERT, "there is no checkpoint to roll back to")
    if 0 <= case.max_restarts <= case.restarts:
        return Decision(Move.ALERT, f"the job has used its {case.max_restarts} restarts")
    return Decision(Move.ROLL_BACK, f"as configured for {case.cause.kind}: {case.cause.text}")


_WHY = {
    Move.WATCH: "training may continue without its agent; recovery starts only if it stops",
    Move.ALERT: "a restart would not help",
}


def backoff_before(attempt: int, longest: float) -> float:
    """Seconds to wait before this one of the restart attempts in a row without progress: 0, 1, 2, 4, ... at most
    `longest`. What ends them may pass by itself (a server that restarts), and a loop of restarts costs others."""
    return min(2.0 ** min(attempt - 2, 16), longest) if attempt >= 2 else 0.0


def count_try(job: Job, cause: Finding, now: Instant) -> None:
    """Note a failed attempt of the job before deciding: progress since the last one resets the count.

    For a program that numbers no steps, any attempt that got past its start made progress.
    """
    life = job.progress.end(job.generation, cause.signature, job.life_steps, now.wall)
    is_nan = cause.kind is t.FindingKind.LOSS_NONFINITE
    ended_at_its_start = job.progress.ended_at_its_start(life, by_steps=is_nan)
    if job.numbers_steps:
        # One that begins at 0 each time has no checkpoints: a bug at one place shows as attempts of one length.
        began_anew = job.generation > 1 and job.life_first == 0
        got_on = job.best_step > job.fruitless_step or (began_anew and job.progress.is_longer_or_shorter())
    else:
        got_on = not ended_at_its_start
    is_stillborn = ended_at_its_start and not life.steps and rows()[cause.kind].fault is Fault.PROGRAM
    job.progress.stillborn = job.progress.stillborn + 1 if is_stillborn else 0
    if got_on or job.signature != cause.signature:
        job.fruitless, job.fruitless_node = 1, cause.node
    else:
        job.fruitless += 1
        job.fruitless_node = cause.node if cause.node == job.fruitless_node else ""
    job.progress.count_idle(life, by_steps=is_nan, is_newer=job.numbers_steps and job.best_step > job.fruitless_step)
    job.fruitless_step, job.signature = job.best_step, cause.signature


def is_alert(kind: t.FindingKind) -> bool:
    """Is a finding of this kind for operators only?"""
    return rows()[kind].first_move is Move.ALERT


def is_broken(kind: t.FindingKind) -> bool:
    """Does a finding of this kind prove that the node is broken?"""
    return rows()[kind].fault is Fault.BROKEN


def is_failure(kind: t.FindingKind) -> bool:
    """Does a finding of this kind end an attempt of the job?"""
    return rows()[kind].first_move in RECOVERS


def is_pause(cause: Finding) -> bool:
    """Is it about a worker that may have gone on by itself, and was ended at a limit?"""
    return cause.evidence.get("life") in _PAUSES


def is_own_wait(cause: Finding) -> bool:
    """Is it about ranks that wait for themselves alone, and for no rank that has left?"""
    return cause.kind is t.FindingKind.WORKER_HANG and cause.evidence.get("reason") in _OWN


def is_network_wait(cause: Finding) -> bool:
    """Is it about ranks that were connecting, or whose operation all had entered? What they wait for is the network's,
    or comes late from elsewhere."""
    return cause.kind is t.FindingKind.WORKER_HANG and cause.evidence.get("reason") in _NETWORK


def waits_longer(cause: Finding) -> bool:
    """Does the next attempt after it begin later each time? It counts as none, and a loop of restarts costs others."""
    return is_network_wait(cause) or (is_pause(cause) and cause.evidence.get("option") == "--idle-limit-start")


def counts_as_try(cause: Finding) -> bool:
    """Whether it counts as a restart attempt."""
    is_wait = is_pause(cause) or is_network_wait(cause)
    return is_failure(cause.kind) and cause.kind is not t.FindingKind.RESTART and not is_wait


def may_repeat(cause: Finding) -> bool:
    """May the program itself end so in the next attempt, too? A kill from outside repeats by chance only."""
    return rows()[cause.kind].fault is Fault.PROGRAM or cause.kind is t.FindingKind.WORKER_OOM


def counts_against(cause: Finding) -> bool:
    """Does it go into the history of the node that it is about? What counts against the program does not."""
    is_programs = is_pause(cause) or is_network_wait(cause)
    return not cause.secondary and not is_programs and rows()[cause.kind].fault in (Fault.NODE, Fault.BROKEN)


_PAUSES = (Liveness.BUSY, Liveness.IDLE, Liveness.HELD, Liveness.UNKNOWN)
_OWN = (Cause.LOCK, Cause.DEADLINE)
_NETWORK = (Reason.TRANSFER, "connecting")
