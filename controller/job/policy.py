"""From an incident's cause to what is done about it, with the reason in words. The tables are the policy.

`detectors/base/findings.toml` says what a finding of each kind asks for first. `decide` goes through `RULES` from the
top: what is known besides (restart attempts without progress, node failures, what diagnosis said) may ask for another
step of the ladder.
"""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.controller.detectors.base.moves import Fault as Fault  # as: other modules write `policy.Move`
from holdfast.controller.detectors.base.moves import Move as Move
from holdfast.controller.detectors.base.table import Row, rows
from holdfast.controller.state.model import Finding, Instant, Job, Options
from holdfast.diagnostics.hang.graph import Reason
from holdfast.diagnostics.hang.stillness import Life
from holdfast.wire import types as t

RECOVERS = frozenset({Move.RESTART, Move.DIAGNOSE, Move.EVICT, Move.SHRINK, Move.GROW, Move.ROLL_BACK, Move.REQUEUE})
"""Moves that end one generation and start the next."""


@dataclass(frozen=True, slots=True)
class Case:
    """All that a decision rests on. Counts include the cause itself."""

    cause: Finding
    options: Options
    restarts: int = 0
    max_restarts: int = -1
    tries: int = 1
    """Starts of the job in a row that made no progress."""
    tries_node: str = ""
    """The node at which all of them ended; empty when they differ."""
    stillborn: int = 0
    """Lives in a row that the program itself ended before its first step, whatever its error."""
    node: str = ""
    """Whom the finding is about, where that is a node or a worker on one."""
    offences: int = 0
    """What was found at this node first-hand, within the window."""
    evictions: int = 0
    """Nodes taken out within the last hour."""
    tested: bool = False
    """Was it diagnosed within the last hour?"""
    replaceable: bool = False
    """A spare waits, or the job may go on with fewer."""
    stored: bool = False
    """Is there a checkpoint of this job in the store?"""
    goes_back: bool = False
    """Did the operator ask to go back where a finding of this kind is only told otherwise?"""
    no_room: bool = False
    """Did a worker end for want of room, on a node of which a disk is full?"""
    went_back: bool = False
    """Did the job go back for the same steps before?"""

    @property
    def row(self) -> Row:
        return rows()[self.cause.kind]

    @property
    def limit(self) -> int:
        """Fruitless starts after which the job is given back."""
        return self.options.tries if self.row.fault is Fault.PROGRAM else self.options.tries_fault


@dataclass(frozen=True, slots=True)
class Rule:
    """`when` in words, for people, and as it is computed; `reason` becomes the incident's."""

    when: str
    holds: Callable[[Case], bool]
    move: Move
    reason: Callable[[Case], str]


def _again(case: Case) -> str:
    same = "the same traceback" if case.cause.kind is t.FindingKind.WORKER_EXCEPTION else case.cause.kind.value
    return f"{same} {case.tries} times without a step of progress: {case.cause.text}"


RULES: tuple[Rule, ...] = (
    Rule(
        "people took the node out",
        lambda c: c.cause.kind is t.FindingKind.EVICTION,
        Move.EVICT,
        lambda c: "by hand",
    ),
    Rule(
        "a pause is at its limit, and the job's `max_restarts` is used up: no pause makes a job failed",
        lambda c: is_pause(c.cause) and 0 <= c.max_restarts <= c.restarts,
        Move.ALERT,
        lambda c: f"the job may be restarted {c.max_restarts} times and has been; a pause does not make it failed",
    ),
    Rule(
        "the job's `max_restarts` is used up",
        lambda c: 0 <= c.max_restarts <= c.restarts and c.cause.kind is not t.FindingKind.RESTART,
        Move.STOP,
        lambda c: f"the job may be restarted {c.max_restarts} times and has been",
    ),
    Rule(
        "so many nodes went within the hour that it cannot be them (`max_evictions`), and this one should go",
        lambda c: _should_go(c) and c.evictions >= c.options.max_evictions and c.tries < c.limit,
        Move.RESTART,
        lambda c: f"{c.node} should go, but {c.evictions} nodes went within the hour: look for what they share",
    ),
    Rule(
        "the node is broken for certain",
        lambda c: c.row.fault is Fault.BROKEN and bool(c.node),
        Move.EVICT,
        lambda c: f"{c.node} cannot be used: {c.cause.text}",
    ),
    Rule(
        "a worker ended for want of room on its node, of which a disk is full, and there is another to take",
        lambda c: c.no_room and bool(c.node) and c.replaceable,
        Move.EVICT,
        lambda c: f"a disk of {c.node} is full: take another; {c.cause.text}",
    ),
    Rule(
        "the node and its peers do not reach each other, and there is another to take",
        lambda c: _is_cut_off(c),
        Move.EVICT,
        lambda c: f"nobody can train with {c.node}: take another",
    ),
    Rule(
        "the same node for the `offences`-th time within a day, and there is another to take",
        lambda c: _should_go(c),
        Move.EVICT,
        lambda c: f"{c.node} for the {_ordinal(c.offences)} time within a day: take another",
    ),
    Rule(
        "as many starts in a row as the kind allows ended at the same node, and there is another to take",
        lambda c: c.tries == c.limit and c.replaceable and c.row.fault is Fault.NODE and bool(c.tries_node),
        Move.EVICT,
        lambda c: f"{c.tries} starts ended at {c.tries_node} without a step of progress: try another node",
    ),
    Rule(
        "as many starts in a row ended like this, without a step of progress, as the kind allows",
        lambda c: c.tries >= c.limit,
        Move.STOP,
        _again,
    ),
    Rule(
        "as many starts in a row as `tries_fault` were ended by the program itself before its first step, by any error",
        lambda c: c.row.fault is Fault.PROGRAM and c.stillborn >= c.options.tries_fault,
        Move.STOP,
        lambda c: f"{c.stillborn} starts in a row ended before the first step, the last with: {c.cause.text}",
    ),
    Rule(
        "a loss is no number again, without a good step since the restart, and there is a checkpoint in the store",
        lambda c: c.cause.kind is t.FindingKind.LOSS_NONFINITE and c.tries >= 2 and c.stored,
        Move.ROLL_BACK,
        lambda c: f"the newest state leads there again: {c.cause.text}",
    ),
    Rule(
        "the same node for the second time within a day; it was not tested within the hour, and there is another",
        lambda c: c.row.fault is Fault.NODE and bool(c.node) and c.offences >= 2 and c.replaceable and not c.tested,
        Move.DIAGNOSE,
        lambda c: f"{c.node} for the {_ordinal(c.offences)} time within a day: test it before it trains again",
    ),
)
"""For kinds whose first move ends a life of the job; the first that holds, else the kind's own move."""


def _should_go(case: Case) -> bool:
    if not case.node or case.cause.secondary:
        return False  # nobody goes on another's word
    if case.row.fault is Fault.BROKEN or _is_cut_off(case):
        return True
    return case.row.fault is Fault.NODE and case.replaceable and case.offences >= case.options.offences


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
        return Decision(move, "start again from the newest whole state; it counts neither as a try nor against a node")
    return Decision(move, f"start again from the newest whole state (try {case.tries} of {case.limit})")


def _if_it_helps(case: Case) -> Decision:
    """Going back because the operator wants it so: never in a circle, and never the end of a job that trains."""
    if case.went_back:
        return Decision(Move.ALERT, f"the job went back for it before, and it came again: {case.cause.text}")
    if not case.stored:
        return Decision(Move.ALERT, "there is no checkpoint to go back to")
    if 0 <= case.max_restarts <= case.restarts:
        return Decision(Move.ALERT, f"the job may be restarted {case.max_restarts} times and has been")
    return Decision(Move.ROLL_BACK, f"as is wished for {case.cause.kind}: {case.cause.text}")


_WHY = {
    Move.WATCH: "training may go on without its watcher; recover only if it stops",
    Move.ALERT: "nothing that a restart would mend",
}


def count_try(job: Job, cause: Finding, now: Instant) -> None:
    """Note a failed life of the job before deciding: progress since the last one starts the count anew.

    Of a program that numbers no steps any life got on that went further than its start.
    """
    life = job.progress.end(job.generation, cause.signature, job.life_steps, now.wall)
    is_nan = cause.kind is t.FindingKind.LOSS_NONFINITE
    ended_at_its_start = job.progress.ended_at_its_start(life, by_steps=is_nan)
    if job.numbers_steps:
        # One that begins at 0 each time has no checkpoints: a bug at one place is told by lives of one length.
        began_anew = job.generation > 1 and job.life_first == 0
        got_on = job.best_step > job.tries_step or (began_anew and job.progress.is_longer_or_shorter())
    else:
        got_on = not ended_at_its_start
    is_stillborn = ended_at_its_start and not life.steps and rows()[cause.kind].fault is Fault.PROGRAM
    job.progress.stillborn = job.progress.stillborn + 1 if is_stillborn else 0
    if got_on or job.signature != cause.signature:
        job.tries, job.tries_node = 1, cause.node
    else:
        job.tries += 1
        job.tries_node = cause.node if cause.node == job.tries_node else ""
    job.tries_step, job.signature = job.best_step, cause.signature


def is_alert(kind: t.FindingKind) -> bool:
    """Is a finding of this kind for people only?"""
    return rows()[kind].first_move is Move.ALERT


def is_broken(kind: t.FindingKind) -> bool:
    """Does a finding of this kind leave no doubt about the node?"""
    return rows()[kind].fault is Fault.BROKEN


def is_failure(kind: t.FindingKind) -> bool:
    """Does a finding of this kind end a life of the job?"""
    return rows()[kind].first_move in RECOVERS


def is_pause(cause: Finding) -> bool:
    """Is it about a worker that may have gone on by itself, and was ended at a limit?"""
    return cause.evidence.get("life") in _PAUSES


def counts_as_try(cause: Finding) -> bool:
    """Does the life of the job that it ended count towards giving the job up?"""
    return is_failure(cause.kind) and cause.kind is not t.FindingKind.RESTART and not is_pause(cause)


def counts_against(cause: Finding) -> bool:
    """Does it go into the history of the node that it is about? What speaks against the program does not."""
    is_programs = is_pause(cause) or cause.evidence.get("reason") in _PROGRAM
    return not cause.secondary and not is_programs and rows()[cause.kind].fault in (Fault.NODE, Fault.BROKEN)


_PAUSES = (Life.BUSY, Life.IDLE, Life.UNKNOWN)
_PROGRAM = (Reason.ORDER, Reason.TRANSFER, Reason.STACK)
