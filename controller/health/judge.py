"""The health of a job, decided once: every view prints what is decided here.

Several conditions may hold at once. The worst leads; `Condition` has them in that order. Each says in one sentence what
it is, since when and what it costs, what is being done, and the one next action for a person.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from holdfast.controller.health.facts import Facts, Fault, Slow
from holdfast.controller.state.model import JobStatus

LATE_STEPS = 8
"""Steps that should have ended before the silence is a condition."""
LATE_S = 10.0
"""The same in seconds, at least."""
WORTH = 0.01
"""Share of the step that a slow rank must cost to be a condition: of 10,000 GPUs it is a hundred of them."""
RISK_S = 3600.0
"""Work that is not stored and that is worth a line."""
OVERDUE = 5.0
"""Times the usual recovery after which waiting is no longer the answer."""
PATIENCE_S = 30.0
"""Waiting for nodes for longer needs a person: agents that only start join sooner."""
NOTHING = "Nothing to do."
_NO_NODES = "waiting for nodes: "


class Condition(StrEnum):
    """From the worst on."""

    FAILED = "failed"
    STOPPED = "stopped"
    NO_PROGRESS = "no progress"
    RECOVERING = "recovering"
    SLOW = "slow"
    PAUSED = "paused"
    AT_RISK = "at risk"
    WAITING = "waiting for nodes"
    STARTING = "starting"
    WELL = "well"
    FINISHED = "finished"


class Remedy(StrEnum):
    """What a view offers to do or to open for the action: the page has a button for each."""

    NONE = ""
    INCIDENT = "incident"
    """Open the incident `target`."""
    STACKS = "stacks"
    DIAGNOSE = "diagnose"
    """Test the node `target`."""
    BLAME = "blame"
    """Open the account of a step: the slow part is no single node."""
    NODES = "nodes"
    CHECKPOINT = "checkpoint"


NEEDS_PERSON = frozenset({Condition.FAILED, Condition.NO_PROGRESS})
"""Conditions that do not end by themselves."""


@dataclass(frozen=True, slots=True)
class Found:
    """One condition. `since`: wall seconds. `doing`: what Holdfast does about it; empty: nothing."""

    condition: Condition
    sentence: str
    since: float
    action: str = NOTHING
    doing: str = ""
    usual_s: float | None = None
    """How long that usually takes."""
    basis: tuple[str, ...] = ()
    remedy: Remedy = Remedy.NONE
    target: str = ""
    """The node or the incident of the remedy."""
    rank: int | None = None
    """The culprit, if it is one rank."""
    is_urgent: bool = False
    """A person is needed, whatever the condition usually is."""


@dataclass(frozen=True, slots=True)
class Health:
    lead: Found
    others: tuple[Found, ...] = ()


def judge(facts: Facts) -> Health:
    found = [one for rule in _RULES if (one := rule(facts)) is not None]
    order = list(Condition)
    found.sort(key=lambda one: order.index(one.condition))
    lead, *others = found or [_well(facts)]
    if facts.state.ended:
        return Health(lead)
    return Health(replace(lead, basis=(*lead.basis, *_standing(facts))), tuple(others))


def length(seconds: float) -> str:
    """About how long, as a person says it."""
    for unit, many in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * many:
            return f"{seconds / many:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def _failed(f: Facts) -> Found | None:
    if f.state is not JobStatus.FAILED:
        return None
    lost, again = _lost(f)
    what = _said(f.ended) if f.ended is not None else f.reason or "the reason is unknown"
    action = f"Correct the cause and start the job again; {again}."
    sentence = f"Failed: {_ended(what)} {lost}"
    if f.ended is None:
        return Found(Condition.FAILED, sentence, f.since, action)
    return Found(
        Condition.FAILED, sentence, f.since, action, basis=_basis(f.ended), remedy=Remedy.INCIDENT, target=f.ended.id,
        rank=_rank(f.ended),
    )  # fmt: skip


def _step(f: Facts, of: int | None = None) -> str:
    """Which step it is at: of the job where that is known."""
    if f.step_of_life is not None:
        return f"step {f.step_of_life} of this life" if f.step_of_life >= 0 else "the restart"
    return f"step {f.step}" + (f" of {of}" if of else "")


def _lost(f: Facts) -> tuple[str, str]:
    """What the failure cost, and where the next start resumes."""
    if f.step < 0:
        return "No step was done.", "it starts at step 0"
    if f.safe is None:
        return (
            "The program reports no checkpoints: Holdfast does not know what is lost.",
            "it resumes from its own state",
        )
    if f.safe < 0:
        return f"All {f.step + 1} steps are lost: no checkpoint was stored.", "it starts at step 0"
    lost = f.step - f.safe
    if lost <= 0:
        return "No step is lost.", f"it resumes after step {f.safe}"
    return f"{lost} steps after the newest checkpoint (step {f.safe}) are lost.", f"it resumes after step {f.safe}"


def _stopped(f: Facts) -> Found | None:
    if f.state is not JobStatus.STOPPED:
        return None
    why = f": {f.reason}" if f.reason else ""
    return Found(Condition.STOPPED, f"Stopped after {_step(f)}{why}", f.since)


def _finished(f: Facts) -> Found | None:
    if f.state is not JobStatus.FINISHED:
        return None
    steps = f"{f.step + 1} steps" + (" in all attempts" if f.step_of_life is not None else "")
    why = f" {f.reason[0].upper()}{f.reason[1:]}." if f.reason else ""
    return Found(Condition.FINISHED, f"Finished after {steps} and {_many(f.restarts, 'restart')}.{why}", f.since)


def _waiting(f: Facts) -> Found | None:
    """Before the first start, in the queue, and where a fault took a node that no spare replaces."""
    if f.state is not JobStatus.PENDING and not _lacks_nodes(f):
        return None
    need = _ended(f.reason.removeprefix(_NO_NODES) or "not enough nodes have joined")
    if f.is_queued and f.state is JobStatus.PENDING:
        sentence = f"Waiting for nodes for {length(f.now - f.since)}: {need}"
        return Found(Condition.WAITING, sentence, f.since, doing="The job starts when the nodes are free.")
    since, action = f.since, "Add nodes, or `holdfast uncordon` one; `holdfast nodes` says why each is out."
    if _lacks_nodes(f) and f.live is not None:
        since, need = f.live.opened, f"{_ended(_said(f.live))} The job {need}"
    sentence = f"Waiting for nodes for {length(f.now - since)}: {need}"
    return Found(
        Condition.WAITING, sentence, since, action, "The job goes on when there are enough.", remedy=Remedy.NODES,
        basis=_basis(f.live) if f.live is not None else (), rank=_rank(f.live) if f.live is not None else None,
        is_urgent=f.now - since > PATIENCE_S,
    )  # fmt: skip


def _lacks_nodes(f: Facts) -> bool:
    return f.state is JobStatus.RECOVERING and f.reason.startswith(_NO_NODES)


def _starting(f: Facts) -> Found | None:
    if f.state is not JobStatus.STARTING:
        return None
    sentence = f"Starting {_many(f.world, 'rank')} on {_many(f.nodes, 'node')} for {length(f.now - f.since)}."
    return Found(Condition.STARTING, sentence, f.since)


def _recovering(f: Facts) -> Found | None:
    is_restoring = f.state is JobStatus.RUNNING and f.live is not None and f.live.is_recovering
    if (f.state is not JobStatus.RECOVERING and not is_restoring) or _lacks_nodes(f):
        return None
    if f.live is None:
        return Found(Condition.RECOVERING, f"Restarting for {length(f.now - f.since)}.", f.since)
    spent = f.now - f.live.opened
    sentence = f"Recovering for {length(spent)}: {_ended(_said(f.live))}"
    is_late = f.usual_recovery is not None and spent > max(60.0, OVERDUE * f.usual_recovery)
    action = f"Look at incident {f.live.id}: it takes longer than usual." if is_late else NOTHING
    return Found(
        Condition.RECOVERING, sentence, f.live.opened, action, _doing(f.live), f.usual_recovery, _basis(f.live),
        Remedy.INCIDENT, f.live.id, _rank(f.live),
    )  # fmt: skip


def _no_progress(f: Facts) -> Found | None:
    is_restoring = f.live is not None and f.live.is_recovering
    if f.state is not JobStatus.RUNNING or f.pause is not None or f.stepped_at is None or is_restoring:
        return None
    silent = f.now - f.stepped_at
    if silent <= max(LATE_S, LATE_STEPS * (f.step_seconds or 0.0)):
        return None
    sentence = f"No step for {length(silent)}: the workers run, but no step has ended since {_step(f)}."
    action = "`holdfast stacks` shows what the ranks do."
    return Found(Condition.NO_PROGRESS, sentence, f.stepped_at, action, remedy=Remedy.STACKS)


def _paused(f: Facts) -> Found | None:
    if f.state is not JobStatus.RUNNING or f.pause is None:
        return None
    pause = f.pause
    usual = f" Here it took up to {length(pause.usual)} before." if pause.usual else ""
    sentence = f"Paused for {length(f.now - pause.since)}, {pause.life}: {_ended(pause.text)}{usual}"
    doing = f"The job is restarted after {length(pause.limit)}." if pause.limit is not None else ""
    return Found(Condition.PAUSED, sentence, pause.since, doing=doing, usual_s=pause.usual or None)


def _slow(f: Facts) -> Found | None:
    worth = [one for one in f.slow if one.cost >= WORTH]
    if f.state is not JobStatus.RUNNING or not worth:
        return None
    worst = max(worth, key=lambda one: one.cost)
    gpus = f", as much as {worst.cost * f.world:.0f} of {f.world} GPUs" if worst.cost * f.world >= 1 else ""
    more = f" {_many(len(worth) - 1, 'more')}." if len(worth) > 1 else ""
    lasts = f", for {length(f.now - worst.since)} so far" if worst.since is not None else ""
    sentence = f"{_named(worst)} makes every step {worst.cost:.0%} longer{gpus}{lasts}.{more}"
    action = f"Test the node: `holdfast diagnose {worst.node or 'NODE'}`."
    remedy = Remedy.DIAGNOSE if worst.node else Remedy.BLAME
    return Found(
        Condition.SLOW, sentence, worst.since or f.since, action, basis=tuple(one.text for one in worth), remedy=remedy,
        target=worst.node, rank=worst.rank if worst.rank >= 0 else None,
    )  # fmt: skip


def _store_down(f: Facts) -> Found | None:
    if f.state is not JobStatus.RUNNING or f.store is None:
        return None
    risk = f" The loss of all nodes would cost {length(f.at_risk)} of work." if f.at_risk is not None else ""
    sentence = f"Training continues, but for {length(f.now - f.store.opened)} {_ended(f.store.text)}{risk}"
    action = f"Bring the checkpoint store back; incident {f.store.id} has its error."
    doing = "Snapshots wait in memory and are uploaded later."
    return Found(
        Condition.AT_RISK, sentence, f.store.opened, action, doing, basis=_basis(f.store), remedy=Remedy.INCIDENT,
        target=f.store.id,
    )  # fmt: skip


def _at_risk(f: Facts) -> Found | None:
    if f.state is not JobStatus.RUNNING:
        return None
    if f.live is not None and not f.live.is_recovering:
        sentence = f"Training continues, but {_ended(_said(f.live))}"
        return Found(
            Condition.AT_RISK, sentence, f.live.opened, doing=_doing(f.live), basis=_basis(f.live),
            remedy=Remedy.INCIDENT, target=f.live.id, rank=_rank(f.live),
        )  # fmt: skip
    if f.doubtful:
        names = ", ".join(f"{name} ({state})" for name, state in f.doubtful[:3])
        more = f" and {len(f.doubtful) - 3} more" if len(f.doubtful) > 3 else ""
        spare = f"{_many(f.spares, 'spare')} could take over" if f.spares else "no spare could take over"
        return Found(Condition.AT_RISK, f"Training continues on nodes in doubt: {names}{more}; {spare}.", f.since,
                     "`holdfast nodes` says why." if not f.spares else NOTHING, remedy=Remedy.NODES)  # fmt: skip
    if f.at_risk is not None and f.at_risk > RISK_S:
        sentence = f"{length(f.at_risk)} of work are not stored: the loss of all nodes would cost them."
        action = "`holdfast checkpoint list` shows what is stored."
        return Found(Condition.AT_RISK, sentence, f.now - f.at_risk, action, remedy=Remedy.CHECKPOINT)
    return None


def _lost_all(f: Facts) -> Found | None:
    if f.state is not JobStatus.RUNNING or f.repeated <= 0 or (f.safe is not None and f.safe >= 0):
        return None
    sentence = f"The restart lost all {f.repeated} steps: no checkpoint is configured. The next one loses them again."
    action = "Give the job a checkpoint store, as `--store` of the trainer."
    return Found(Condition.AT_RISK, sentence, f.since, action, is_urgent=True)


def _well(f: Facts) -> Found:
    at = f"at {_step(f, f.max_steps)}" if f.step >= 0 else "before its first step"
    return Found(Condition.WELL, f"Training normally, {at}, with {_many(f.restarts, 'restart')} so far.", f.since)


_RULES: tuple[Callable[[Facts], Found | None], ...] = (
    _failed, _stopped, _finished, _waiting, _starting, _recovering, _no_progress, _slow, _paused, _lost_all,
    _store_down, _at_risk,
)  # fmt: skip


def _said(fault: Fault) -> str:
    """Who, where and what; who it is only once."""
    name, place = _spaced(fault.subject), f"on {fault.node}" if fault.node and fault.node != fault.subject else ""
    if fault.text.startswith(name):
        return f"{place}, {fault.text}" if place else fault.text
    return f"{name} {place}: {fault.text}" if place else f"{name}: {fault.text}"


def _rank(fault: Fault) -> int | None:
    return int(fault.subject[4:]) if fault.subject.startswith("rank") and fault.subject[4:].isdigit() else None


def _spaced(subject: str) -> str:
    if subject.startswith("rank") and subject[4:].isdigit():
        return f"rank {subject[4:]}"
    return f"the {subject}" if subject in ("job", "controller") else subject


def _named(slow: Slow) -> str:
    if slow.rank < 0:
        return "The plan itself"
    place = f" on {slow.node}" if slow.node else ""
    return f"The link of ranks {slow.rank} and {slow.peer}" if slow.peer >= 0 else f"Rank {slow.rank}{place}"


def _doing(fault: Fault) -> str:
    return f"{fault.action}: {fault.phase}" if fault.action and fault.phase else fault.action or fault.phase


def _standing(f: Facts) -> tuple[str, ...]:
    """What any judgement of a job that is not over rests on besides: what there is for the next fault."""
    parts = [_many(f.spares, "spare node")]
    if f.at_risk is not None:
        parts.append(f"{length(f.at_risk)} of work not stored")
    if f.certificates_end is not None:
        left = f.certificates_end - f.now
        parts.append(
            f"certificates valid for {length(left)}" if left > 0 else f"a certificate expired {length(-left)} ago"
        )
    return ("; ".join(parts),)


def _basis(fault: Fault) -> tuple[str, ...]:
    return (f"incident {fault.id}, {fault.kind}",)


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 or word == "more" else f"{count} {word}s"
