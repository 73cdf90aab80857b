"""All diagnoses: those that run, those that ended, and what nodes measured in the past. Decides, does no I/O.

An incident's policy uses the same two calls as a person: `begin` for some nodes, then `outcome` until it is one.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.errors import Conflict, NotFound, ProtocolError, UsageError
from holdfast.base.settings import nearest
from holdfast.controller.cluster.placement import natural
from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.diagnosis.diagnosing import Ask, DiagnoseSession
from holdfast.controller.diagnosis.slow_links import slow_links
from holdfast.controller.state.events import Action, DiagnoseRequested, Record, Say, Send
from holdfast.controller.state.model import Instant, Node
from holdfast.diagnostics.catalog.catalog import MOST_PASSES, choose, parse_suite
from holdfast.diagnostics.catalog.results import CheckResult, parse_result
from holdfast.diagnostics.catalog.verdicts import Grade, Verdict
from holdfast.diagnostics.isolation.isolation import TRIES
from holdfast.diagnostics.isolation.nodes import Figures, from_passes, passes
from holdfast.diagnostics.isolation.pairs import Candidate
from holdfast.wire import messages as msg

_KEPT = 32  # ended diagnoses that can still be looked at, that the journal has, and whose figures make the past
_MOST_VERDICTS = 50_000  # in all that are kept in full: one of a thousand nodes has fifteen thousand
_FEWEST_PARTNERS = 3

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DiagnosisOutcome:
    """What a policy needs of an ended diagnosis. `cleared`: tested, and nothing bad found."""

    id: str
    failed: tuple[str, ...]
    cleared: tuple[str, ...]
    verdicts: tuple[Verdict, ...]


@dataclass(slots=True)
class Diagnoses:
    c: ClusterState
    running: dict[str, DiagnoseSession] = field(default_factory=dict)
    outcomes: dict[str, DiagnosisOutcome] = field(default_factory=dict)
    docs: dict[str, Json] = field(default_factory=dict)  # of ended ones, oldest first
    newest: dict[str, dict[tuple[str, str], Verdict]] = field(default_factory=dict)
    """By node: the worst verdict of each (check, metric) when it was last tested."""
    past: dict[str, dict[str, deque[tuple[float, float]]]] = field(default_factory=dict)
    _slot: int = 0  # where in the journal the next one goes: it holds a ring of them
    _why: dict[str, str] = field(default_factory=dict)
    _commands: dict[str, tuple[str, int]] = field(default_factory=dict)  # command id -> diagnosis, ask

    # --- asking --------------------------------------------------------------------------------------------------

    def asked(self, event: DiagnoseRequested, now: Instant) -> list[Action]:
        return self.begin(
            event.id, event.nodes, event.suite, event.tests, event.busy, "by an operator", now, event.passes
        )

    def begin(
        self,
        id: str,
        names: Sequence[str],
        suite: str,
        tests: Sequence[str],
        busy: bool,
        why: str,
        now: Instant,
        passes: int = 0,
    ) -> list[Action]:
        """Diagnose these nodes; none named: all that are idle. `busy`: also nodes that train, which slows them.
        `passes`: tests of pairs without a failure after which a node has passed; 0: as the suite.

        NotFound: a node. UsageError: a test, `passes`. Conflict: not at this moment.
        """
        size, checks = parse_suite(suite), choose(parse_suite(suite), tuple(tests))
        if passes and not TRIES <= passes <= MOST_PASSES:
            raise UsageError(f"passes: {passes} is not from {TRIES} to {MOST_PASSES}")
        if id in self.running or id in self.docs:
            raise Conflict(f"a diagnosis {id} already exists")
        targets = self._targets(names, busy)
        taken = {name for session in self.running.values() for name in session.nodes}
        doubly = sorted(taken.intersection(n.name for n in targets))
        if doubly:
            raise Conflict(f"{doubly[0]} is already being diagnosed; wait until it ends")
        partners = self._partners(targets, taken)
        seed = len(self.docs) + len(self.running) + int(now.wall)
        session = DiagnoseSession(
            id, [_candidate(n) for n in targets], [_candidate(n) for n in partners], checks, size, self.past, seed,
            busy, passes,
        )  # fmt: skip
        self.running[id], self._why[id] = session, why
        said = Say("diagnose.begin", {"id": id, "nodes": len(targets), "suite": str(size), "why": why})
        return [said, *self._after(session, session.begin(now), now)]

    def outcome(self, id: str) -> DiagnosisOutcome | None:
        """None while it runs, or when it is not known (any more)."""
        return self.outcomes.get(id)

    def _targets(self, names: Sequence[str], busy: bool) -> list[Node]:
        for name in names:
            if name not in self.c.nodes:
                raise NotFound(f"no node is called {name!r}{nearest(name, self.c.nodes)}")
            if not self.c.nodes[name].connected:
                raise Conflict(f"node {name} is not connected: it cannot run a check")
            if not busy and self._trains(name):
                raise Conflict(f"node {name} is training: checks would slow the job down; add --busy to run them")
        if names:
            return [self.c.nodes[name] for name in dict.fromkeys(names)]
        present = [node for node in self.c.nodes.values() if node.connected]
        idle = [node for node in present if busy or not self._trains(node.name)]
        if not idle:
            why = "all nodes are training; add --busy to run checks" if present else "no node is connected"
            raise Conflict(f"nothing to diagnose: {why}")
        return sorted(idle, key=lambda node: natural(node.name))

    def _trains(self, name: str) -> bool:
        return self.c.holder(name) is not None

    def _partners(self, targets: Sequence[Node], taken: Collection[str]) -> list[Node]:
        """Idle nodes to pair with, those under the targets' switches first; not more than it takes."""
        mine, switches = {n.name for n in targets}, {n.identity.switch for n in targets}
        idle = [
            node for node in self.c.nodes.values()
            if node.name not in mine and node.name not in taken and node.usable and not self._trains(node.name)
        ]  # fmt: skip
        idle.sort(key=lambda node: (node.identity.switch not in switches, natural(node.name)))
        return idle[: max(_FEWEST_PARTNERS, len(targets))]

    # --- what happens --------------------------------------------------------------------------------------------

    def _answered(self, result: msg.CommandResult, now: Instant) -> list[Action]:
        id, ask = self._commands.pop(result.id, ("", 0))
        session = self.running.get(id)
        if session is None:
            return []  # it came too late
        results: list[CheckResult] = []
        error = "" if result.ok else result.error or "the agent could not run it"
        for line in result.data.get("results", "").splitlines():
            try:
                results.append(parse_result(line))
            except ProtocolError as bad:
                error = error or str(bad)
        return self._after(session, session.answered(ask, results, error, now), now)

    def left(self, node: str, now: Instant) -> list[Action]:
        actions: list[Action] = []
        for session in list(self.running.values()):
            if node in session.nodes:
                actions += self._after(session, session.left(node, now), now)
        return actions

    def tick(self, now: Instant) -> list[Action]:
        actions: list[Action] = []
        for session in list(self.running.values()):
            actions += self._after(session, session.tick(now), now)
        return actions

    def _after(self, session: DiagnoseSession, asks: Sequence[Ask], now: Instant) -> list[Action]:
        actions: list[Action] = []
        for ask in asks:
            send = self.c.commands.issue(ask.node, "", 0, ask.order, self._answered)
            self._commands[send.command.id] = (session.id, ask.id)
            actions.append(Send(ask.node, send.command))
        return actions + (self._ended(session, now) if session.ended else [])

    def _ended(self, session: DiagnoseSession, now: Instant) -> list[Action]:
        del self.running[session.id]
        self._commands = {key: value for key, value in self._commands.items() if value[0] != session.id}
        self.outcomes[session.id] = DiagnosisOutcome(
            session.id, tuple(session.failed), tuple(session.cleared), tuple(session.verdicts)
        )
        head = {**_doc(session), "why": self._why.pop(session.id, "")}
        figures = passes(session.verdicts)
        self._keep(head, session.verdicts)
        self._learn(now.wall, figures)
        bad = [v.to_doc() for v in session.verdicts if v.grade is not Grade.PASS]
        actions: list[Action] = [Record("diagnosis", str(self._slot), {**head, "verdicts": bad, "figures": figures})]
        self._slot = (self._slot + 1) % _KEPT
        actions.append(
            Say("diagnose.end", {"id": session.id, "failed": session.failed, "cleared": len(session.cleared)})
        )
        return actions + self._open_to_all(session.cleared)

    def _open_to_all(self, names: Sequence[str]) -> list[Action]:
        """Nodes that passed may be given to any job again."""
        passed = [name for name in names if self.c.history(name).failed_job]
        for name in passed:
            self.c.history(name).passed()
        return [Record("node", name, self.c.history(name).kept()) for name in passed]

    def _learn(self, at: float, figures: Figures) -> None:
        for node, values in figures.items():
            kept = self.past.setdefault(node, {})
            for key, value in values.items():
                if value is not None:
                    kept.setdefault(key, deque(maxlen=_KEPT)).append((at, value))

    def _keep(self, head: Json, verdicts: Sequence[Verdict]) -> None:
        self.docs[head["id"]] = {**head, "verdicts": [v.to_doc() for v in verdicts]}
        while len(self.docs) > 1 and (
            len(self.docs) > _KEPT or sum(len(doc["verdicts"]) for doc in self.docs.values()) > _MOST_VERDICTS
        ):
            oldest = next(iter(self.docs))
            del self.docs[oldest]
            self.outcomes.pop(oldest, None)
        self.c.slow = slow_links(self.docs.values())
        fresh: dict[str, dict[tuple[str, str], Verdict]] = {}
        for v in verdicts:
            mine = fresh.setdefault(v.node, {})
            known = mine.get((v.check, v.metric))
            if known is None or _rank(v) > _rank(known):
                mine[(v.check, v.metric)] = v
        for node, rows in fresh.items():
            self.newest.setdefault(node, {}).update(rows)

    # --- coming back, looking ------------------------------------------------------------------------------------

    def restore(self, kind: str, key: str, doc: Json) -> None:
        """Restore one document of the journal, if it is a diagnosis. One that still ran then is dropped."""
        if kind == "diagnosis":
            figures, bad = doc["figures"], [_verdict(v) for v in doc["verdicts"]]
            head = {name: value for name, value in doc.items() if name not in ("figures", "verdicts")}
            self._keep(head, [*bad, *from_passes(figures)])
            self._learn(float(doc["ended"]), figures)
            self._slot = (int(key) + 1) % _KEPT

    def rows(self) -> list[Json]:
        """The newest verdict of every node, test and figure, as metrics want it; what could not run is left out."""
        return [
            {"node": v.node, "test": v.check, "metric": v.metric, "grade": str(v.grade),
             "value": v.value if v.value == v.value else None}
            for mine in self.newest.values() for v in mine.values() if v.grade is not Grade.UNABLE
        ]  # fmt: skip

    def all_docs(self) -> list[Json]:
        """Newest first; the verdicts come when it has ended."""
        now = [{**_doc(session), "why": self._why[id], "verdicts": []} for id, session in self.running.items()]
        return [*reversed(now), *reversed(self.docs.values())]


def _rank(verdict: Verdict) -> int:
    return (Grade.UNABLE, Grade.PASS, Grade.DEGRADED, Grade.FAIL).index(verdict.grade)


def _candidate(node: Node) -> Candidate:
    i = node.identity
    models = sorted({gpu.model for gpu in i.gpus})
    outside = [ip for ip in i.ips if not ip.startswith("127.") and ip != "::1"]
    # Loopback is where the controller sees an agent of its own machine: no other machine finds it there.
    own = "" if i.address.startswith("127.") or i.address == "::1" else i.address
    return Candidate(
        node.name, i.boot_id or node.name, i.switch, own or next(iter(outside), ""),
        f"{i.cpus} processors, {len(i.gpus)} GPUs {', '.join(models)}",
        tuple(n.name.partition("/")[0] for n in i.nics if n.kind == "rdma"),
    )  # fmt: skip


def _doc(session: DiagnoseSession) -> Json:
    return {
        "id": session.id,
        "state": "done" if session.ended else "running",
        "suite": str(session.suite),
        "tests": [check.name for check in session.checks],
        "nodes": sorted(session.targets, key=natural),
        "stage": str(session.stage),
        "rounds": session.rounds,
        "jobs_done": session.done,
        "jobs_open": session.open_jobs,
        "began": session.began.wall if session.began else None,
        "ended": session.finished.wall if session.finished else None,
        "failed": session.failed,
        "cleared": session.cleared,
    }


def _verdict(doc: Json) -> Verdict:
    """From the journal; numbers that are not known were None there."""
    numbers: Json = {k: float("nan") if doc[k] is None else float(doc[k]) for k in ("value", "bar", "baseline")}
    rest = {k: v for k, v in doc.items() if k not in ("severity", "grade", *numbers)}
    return Verdict(grade=Grade(doc["grade"]), **numbers, **rest)
