"""One diagnosis of some nodes, from the first command to the verdicts: a pure state machine.

Instants and answers go in, `Ask`s come out; what has to run at the same time (the two ends of a pair) is one job. Nodes
on the same machine are measured one after the other: they would only measure each other.

    session = DiagnoseSession("d1", targets, partners, choose(Suite.QUICK), Suite.QUICK)
    asks = session.begin(now)
    asks = session.answered(ask.id, results, "", now)   # for every answer
    asks = session.tick(now)                            # now and then: deadlines
    session.ended, session.failed, session.verdicts
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.controller.state.model import Instant
from holdfast.diagnostics.catalog.catalog import (
    MOST_ROUNDS,
    NEIGHBOURS_S,
    NODE_S,
    PAIR_S,
    PASSES,
    Check,
    Scope,
    Suite,
    limit_s,
)
from holdfast.diagnostics.catalog.results import CheckResult
from holdfast.diagnostics.catalog.verdicts import Grade, Verdict
from holdfast.diagnostics.isolation.isolation import Isolation, Pair, PairKind
from holdfast.diagnostics.isolation.nodes import AGENT_LEFT, Judgement
from holdfast.diagnostics.isolation.pairs import LINK, Candidate, Past, between
from holdfast.wire import messages as msg

_PATIENCE = 3.0  # seconds beyond its deadline after which a check's answer is not waited for
_REPEATS = 2  # more attempts for a figure that is not good, before it is believed
_ACROSS_ROUNDS = 3  # in which each switch reduces with another one
_ACROSS_NODES = 4  # of each of the two
_FIRST_PORT, _PORTS = 20_000, 12_000  # below the range that Linux gives away by itself


@dataclass(frozen=True, slots=True)
class Ask:
    """A command to send: `id` is what its answer must carry."""

    id: int
    node: str
    order: msg.RunCheck


class DiagnosisStage(StrEnum):
    NODES = "nodes"
    REPEAT = "repeat"
    PAIRS = "pairs"
    NEIGHBOURS = "neighbours"
    DONE = "done"


@dataclass(slots=True)
class _Job:
    """Asks that run together, and what came of them: results by node."""

    nodes: tuple[str, ...]
    asks: list[Ask]
    deadline: float  # seconds that it may take
    due: float = 0.0
    results: dict[str, tuple[CheckResult, ...]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    pair: Pair | None = None
    kind: PairKind = PairKind.NEAR
    way: Pair | None = None  # the two switches of a group across

    def open(self) -> bool:
        return any(a.node not in self.results and a.node not in self.errors for a in self.asks)


class DiagnoseSession:
    def __init__(
        self,
        id: str,
        targets: Sequence[Candidate],
        partners: Sequence[Candidate],
        checks: Sequence[Check],
        suite: Suite = Suite.QUICK,
        past: Past | None = None,
        seed: int = 0,
        polite: bool = False,
        passes: int = 0,
    ) -> None:
        """`partners`: other idle nodes, for pairs; they may be faulty themselves, and what is found bad of
        them is reported, too. `past`: earlier good figures of the nodes. `polite`: some of them train, so that checks
        must not run ahead of other programs. `passes`: tests of pairs without a failure after which a node has passed;
        0: as many as the suite has."""
        self.id, self.suite, self.checks = id, suite, tuple(checks)
        self.targets = {c.node: c for c in targets}
        self._all = self.targets | {c.node: c for c in partners if c.node not in self.targets}
        self._gone: set[str] = set()
        self._seed, self._polite = seed, polite
        self._issued = 0
        self._queue: list[_Job] = []
        self._running: dict[int, _Job] = {}  # by ask
        self._busy: set[str] = set()  # machines on which something is measured
        self._repeats = 0
        self._over: float | None = None
        self._judgement = Judgement(self._all, past or {})
        # On one machine nothing goes through a switch, unless each has a network, and so an address, of its own.
        addresses = {c.address for c in self._all.values()} - {""}
        hosts = {c.host or c.node for c in self._all.values()}
        self._is_one_machine = len(hosts) == 1 and len(addresses) < len(self._all)
        switches = {} if self._is_one_machine else {n: c.switch for n, c in self._all.items()}
        passes = passes or PASSES[suite]
        self.limit_s = limit_s(suite, passes)
        self._isolation = Isolation(
            list(self._all), switches=switches, max_rounds=MOST_ROUNDS, seed=seed, passes=passes,
            partners=self._all.keys() - self.targets.keys(),
        )  # fmt: skip
        self.stage = DiagnosisStage.NODES
        self.began: Instant | None = None
        self.finished: Instant | None = None
        self.verdicts: list[Verdict] = []
        self.done = 0  # jobs finished

    # --- what is known -------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self.stage is DiagnosisStage.DONE

    @property
    def nodes(self) -> set[str]:
        """All that take part: no other diagnosis must measure them meanwhile."""
        return set(self._all)

    @property
    def failed(self) -> list[str]:
        """Nodes with a verdict `fail`: what a policy may act upon."""
        return sorted({v.node for v in self.verdicts if v.grade is Grade.FAIL})

    @property
    def cleared(self) -> list[str]:
        """Targets of which something was tested and everything that was tested passed."""
        passed = {v.node for v in self.verdicts if v.grade is Grade.PASS}
        bad = (Grade.FAIL, Grade.DEGRADED)
        blemished = {v.node for v in self.verdicts if v.grade in bad and not v.component.startswith(LINK)}
        blemished |= {node for node in self._isolation.undecided if self._isolation.failed_with(node)}
        return sorted((passed - blemished) & set(self.targets))

    @property
    def rounds(self) -> int:
        """Rounds of pairs so far."""
        return self._isolation.rounds

    @property
    def open_jobs(self) -> int:
        return len(self._queue) + len(self._jobs())

    # --- what happens --------------------------------------------------------------------------------------------

    def begin(self, now: Instant) -> list[Ask]:
        self.began, self._over = now, now.mono + self.limit_s
        names = self._names(Scope.NODE)
        if names:
            self._queue = [self._node_job(node, names) for node in self.targets]
        return self._go_on([], now)

    def answered(self, ask: int, results: Sequence[CheckResult], error: str, now: Instant) -> list[Ask]:
        """`error`: why there are no (or not all) results; empty when the process ended by itself."""
        job = self._running.get(ask)
        if job is None:
            return []  # too late, or reported before
        node = next(asked.node for asked in job.asks if asked.id == ask)
        job.results[node] = tuple(results)
        if error:
            job.errors[node] = error
        return self._go_on([job], now)

    def left(self, node: str, now: Instant) -> list[Ask]:
        """The node's agent is gone: nothing more comes from there."""
        self._gone.add(node)
        mine = [job for job in self._jobs() if node in job.nodes]
        for job in mine:
            if node not in job.results:
                job.errors[node] = AGENT_LEFT
        return self._go_on(mine, now)

    def tick(self, now: Instant) -> list[Ask]:
        if self._over is not None and now.mono >= self._over and not self.ended:
            self._judgement.out_of_time = True
            return self._finish(now)
        late = [job for job in self._jobs() if now.mono >= job.due]
        for job in late:
            for ask in job.asks:
                if ask.node not in job.results:
                    job.errors.setdefault(ask.node, f"no answer in {job.deadline:g} s")
        return self._go_on(late, now)

    # --- the plan ------------------------------------------------------------------------------------------------

    def _jobs(self) -> list[_Job]:
        """Those that run, once each."""
        return list({job.asks[0].id: job for job in self._running.values()}.values())

    def _go_on(self, changed: Sequence[_Job], now: Instant) -> list[Ask]:
        """Take what is finished, start what can be, move to the next stage when nothing is left of this one."""
        if self.ended or self.began is None:
            return []
        for job in changed:
            if not job.open():
                for ask in job.asks:
                    del self._running[ask.id]
                self._busy.difference_update(self._hosts(job))
                self.done += 1
                self._take(job)
        asks = self._start(now)
        while not self._running and not self._queue and not self.ended:
            self._next_stage(now)
            asks += self._start(now)
        return asks

    def _start(self, now: Instant) -> list[Ask]:
        asks: list[Ask] = []
        waiting: list[_Job] = []
        for job in self._queue:
            if self._gone.intersection(job.nodes):
                job.errors |= {node: AGENT_LEFT for node in job.nodes if node in self._gone}
                self._take(job)
            elif self._busy.isdisjoint(self._hosts(job)):
                self._busy.update(self._hosts(job))
                job.due = now.mono + job.deadline + _PATIENCE
                self._running |= {ask.id: job for ask in job.asks}
                asks += job.asks
            else:
                waiting.append(job)
        self._queue = waiting
        return asks

    def _hosts(self, job: _Job) -> set[str]:
        return {self._all[node].host or node for node in job.nodes}

    def _take(self, job: _Job) -> None:
        if job.pair is not None:
            self._judgement.pairs.take(job.pair, job.results, job.errors, job.kind)
            return
        if job.way is not None and (errors := [*job.errors.values(), *_errors_of(job)]):
            self._judgement.broken_ways[job.way] = errors[0]
            return
        for ask in job.asks:
            for check in ask.order.checks:
                self._judgement.take(ask.node, check, job.results.get(ask.node, ()), job.errors.get(ask.node, ""))

    def _next_stage(self, now: Instant) -> None:
        match self.stage:
            case DiagnosisStage.NODES | DiagnosisStage.REPEAT:
                doubtful = self._judgement.doubtful(self.targets) if self._repeats < _REPEATS else {}
                if doubtful:
                    self.stage, self._repeats = DiagnosisStage.REPEAT, self._repeats + 1
                    self._queue = [self._node_job(node, checks) for node, checks in doubtful.items()]
                else:
                    self.stage = DiagnosisStage.PAIRS
                    self._queue = self._pair_jobs()
            case DiagnosisStage.PAIRS:
                self._isolation.report(self._judgement.pairs.round_results())
                self._queue = self._pair_jobs()
                if not self._queue:
                    self.stage = DiagnosisStage.NEIGHBOURS
                    self._queue = self._neighbour_jobs()
            case DiagnosisStage.NEIGHBOURS | DiagnosisStage.DONE:
                self._finish(now)

    def _finish(self, now: Instant) -> list[Ask]:
        self.stage, self.finished = DiagnosisStage.DONE, now
        self._queue, self._running = [], {}
        for check in self.checks:
            match check.scope:
                case Scope.NODE:
                    self.verdicts += self._judgement.node_verdicts(check, self.targets)
                case Scope.PAIR:
                    late = self._judgement.out_of_time
                    self.verdicts += self._judgement.pairs.verdicts(check, self.targets, self._isolation, late)
                case Scope.NEIGHBOURS:
                    self.verdicts += self._judgement.neighbour_verdicts(check, self.targets)
        return []

    # --- jobs ----------------------------------------------------------------------------------------------------

    def _names(self, scope: Scope) -> tuple[str, ...]:
        return tuple(check.name for check in self.checks if check.scope is scope)

    def _ask(self, node: str, checks: tuple[str, ...], options: Mapping[str, object], deadline: float) -> Ask:
        self._issued += 1
        text = json.dumps({"suite": str(self.suite), "polite": self._polite, **options}, sort_keys=True)
        return Ask(self._issued, node, msg.RunCheck(checks, text, deadline))

    def _node_job(self, node: str, checks: Iterable[str]) -> _Job:
        deadline = NODE_S[self.suite]
        return _Job((node,), [self._ask(node, tuple(checks), {}, deadline)], deadline)

    def _pair_jobs(self) -> list[_Job]:
        names = self._names(Scope.PAIR)
        if not names or len(self._all) < 2:
            return []
        return [self._pair_job(pair, names) for pair in self._isolation.next_round()]

    def _pair_job(self, pair: Pair, names: tuple[str, ...]) -> _Job:
        client, server = pair
        deadline = PAIR_S[self.suite]
        port = _FIRST_PORT + (self._seed + 31 * self._issued) % _PORTS
        rails = tuple(zip(self._all[client].rdma, self._all[server].rdma, strict=False))
        common = {"port": port, "session": f"{self.id}.{self._issued}", "address": self._reach(server, client)}
        asks = [
            self._ask(server, names, {**common, "role": "server", "rdma": [rail[1] for rail in rails]}, deadline),
            self._ask(client, names, {**common, "role": "client", "rdma": [rail[0] for rail in rails]}, deadline),
        ]
        return _Job(pair, asks, deadline, pair=pair, kind=self._isolation.kind(pair))

    def _reach(self, server: str, client: str) -> str:
        """Loopback reaches only nodes on the same host."""
        there, here = self._all[server], self._all[client]
        return "127.0.0.1" if not there.address and there.host == here.host else there.address

    def _neighbour_jobs(self) -> list[_Job]:
        """The good nodes of each switch, then some of every two switches."""
        names = self._names(Scope.NEIGHBOURS)
        groups: dict[str, list[str]] = {}
        for node in sorted(self._isolation.good or self.targets):
            groups.setdefault(self._all[node].switch, []).append(node)
        if not names:
            return []
        jobs = [self._group_job(members, names) for members in groups.values() if len(members) > 2]
        switches = [] if self._is_one_machine else sorted(switch for switch in groups if switch)
        for one, other in some_pairs(switches, _ACROSS_ROUNDS):
            members = groups[one][:_ACROSS_NODES] + groups[other][:_ACROSS_NODES]
            if len(members) > 2:
                jobs.append(self._group_job(members, names, (one, other)))
        return jobs

    def _group_job(self, members: Sequence[str], names: tuple[str, ...], way: Pair | None = None) -> _Job:
        first = members[0]
        port = _FIRST_PORT + (self._seed + 31 * self._issued) % _PORTS
        common = {"port": port, "ranks": len(members), "address": self._all[first].address or "127.0.0.1",
                  "part": between(way) if way is not None else ""}  # fmt: skip
        asks = [
            self._ask(node, names, {**common, "rank": rank, "own": self._all[node].address}, NEIGHBOURS_S)
            for rank, node in enumerate(members)
        ]
        return _Job(tuple(members), asks, NEIGHBOURS_S, way=way)


def _errors_of(job: _Job) -> list[str]:
    """Why members of a group have no figure; a check that cannot run there is no error."""
    silent = [f"{ask.node} gave no result" for ask in job.asks if not job.results.get(ask.node)]
    return [result.error for results in job.results.values() for result in results if result.error] + silent


def some_pairs(names: Sequence[str], rounds: int) -> list[Pair]:
    """Every two of them by the circle method, as far as so many rounds go in which each is in one pair."""
    ring = [*names, ""] if len(names) % 2 else list(names)
    found: list[Pair] = []
    for _ in range(min(rounds, len(ring) - 1)):
        half = len(ring) // 2
        found += [(a, b) for a, b in zip(ring[:half], reversed(ring[half:]), strict=True) if a and b]
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found
