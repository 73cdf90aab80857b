"""Nodes that are made up, with what a diagnosis would measure of them, in virtual time."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.controller.diagnosis.diagnosing import Ask, DiagnoseSession
from holdfast.controller.state.model import Instant
from holdfast.diagnostics.catalog.results import CheckFault, CheckResult, Reading
from holdfast.diagnostics.isolation.pairs import Candidate


@dataclass
class Machine:
    """`speed`, `link`: shares of what a sound one has. `dead`: no packet comes through."""

    speed: float = 1.0
    link: float = 1.0
    loss: float = 0.0
    dead: bool = False
    wrong: bool = False
    broken: str = ""
    silent: bool = False
    dips: int = 0  # so many measurements of its speed come out at half
    lacks: str = ""
    offset: float = 0.0
    across: float = 1.0  # share of its link's figure in pairs that cross a switch
    flaky: bool = False  # every second pair with it fails
    pairs: int = 0


@dataclass
class Bench:
    """`run()` plays a session to its end: node checks take 3 s, pairs 2 s.

    `ways`: two switches -> share of a link's figure that gets from one to the other. `narrow`: how many pairs may leave
    a switch at once before they share, and lose packets, as above switches with fewer ways up than down."""

    machines: dict[str, Machine]
    noise: float = 0.03
    seed: int = 0
    now: float = 1000.0
    sent: list[Ask] = field(default_factory=list)
    ways: dict[tuple[str, str], float] = field(default_factory=dict)
    narrow: int = 0
    switch_of: dict[str, str] = field(default_factory=dict)
    crossing: dict[str, int] = field(default_factory=dict)  # by switch: pairs that leave it now

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def instant(self) -> Instant:
        return Instant(self.now, 1e9 + self.now)

    def run(self, session: DiagnoseSession) -> DiagnoseSession:
        """To the end, or AssertionError after ten minutes of its time."""
        start = self.now
        due: list[tuple[float, Ask]] = [(self.now + self._takes(a), a) for a in session.begin(self.instant())]
        while not session.ended:
            assert self.now - start < 600, "it does not end"
            self.now += 0.5
            ready = [ask for at, ask in due if at <= self.now]
            due = [(at, ask) for at, ask in due if at > self.now]
            new: list[Ask] = []
            for ask in ready:
                if not self.machines[ask.node].silent:
                    new += session.answered(ask.id, self.measure(ask), "", self.instant())
            new += session.tick(self.instant())
            due += [(self.now + self._takes(a), a) for a in new]
            self.sent += new
            if new:
                self.crossing = Counter(switch for a in new for switch in self._crosses(a))
        return session

    def _takes(self, ask: Ask) -> float:
        return 2.0 if "pair" in ask.order.checks else 3.0

    def _crosses(self, ask: Ask) -> tuple[str, ...]:
        options = json.loads(ask.order.options)
        return (self._way(ask.node, options["address"]) or ()) if options.get("role") == "client" else ()

    def _way(self, node: str, other: str) -> tuple[str, str] | None:
        one, two = sorted((self.switch_of.get(node, ""), self.switch_of.get(other, "")))
        return None if one == two else (one, two)

    def measure(self, ask: Ask) -> list[CheckResult]:
        options = json.loads(ask.order.options)
        return [self._one(name, ask.node, options) for name in ask.order.checks]

    def _one(self, name: str, node: str, options: dict[str, str]) -> CheckResult:
        machine = self.machines[node]
        if name == machine.lacks:
            return CheckResult(name, unable="not here")
        if name == machine.broken:
            return CheckResult(name, error="RuntimeError: it broke")
        if name == "gemm":
            dip = 0.5 if machine.dips > 0 else 1.0
            machine.dips -= 1
            faults = (CheckFault("a matrix product is wrong", "cpu"),) if machine.wrong else ()
            return CheckResult(name, (Reading("flops", self._noisy(1e11 * machine.speed * dip), "cpu"),), faults)
        if name == "memory":
            return CheckResult(name, (Reading("bandwidth", self._noisy(1e10)),))
        if name == "pair":
            if options["role"] == "server":
                return CheckResult(name)
            other = self.machines.get(options["address"], machine)
            if machine.dead or other.dead:
                return CheckResult(name, error="no way to its partner")
            flaky = [m for m in (machine, other) if m.flaky]
            for one in flaky:
                one.pairs += 1
            way = self._way(node, options["address"])
            share = 1.0 if way is None else min(machine.across, other.across, self.ways.get(way, 1.0))
            if not share or any(one.pairs % 2 == 0 for one in flaky):
                return CheckResult(name, error="no way to its partner")
            loss = max(machine.loss, other.loss)
            crossing = max((self.crossing.get(switch, 0) for switch in way or ()), default=0)
            if self.narrow and crossing > self.narrow:
                # They share unevenly, as streams do, and queues overflow.
                share *= self.narrow / crossing * self._random.uniform(0.8, 1.25)
                loss = max(loss, self._random.uniform(0.003, 0.01))
            return CheckResult(
                name,
                (
                    Reading("bandwidth", self._noisy(1e9 * min(machine.link, other.link) * share)),
                    Reading("loss", loss),
                    Reading("clock_offset", abs(machine.offset - other.offset)),
                ),
            )
        if name == "all-reduce":
            part = options["part"]
            share = next((s for (one, two), s in self.ways.items() if part.endswith(f"{one} and {two}")), 1.0)
            if not share:
                return CheckResult(name, error="RuntimeError: Connection closed by peer")
            return CheckResult(name, (Reading("busbw", self._noisy(1e9 * share), part),))
        return CheckResult(name)

    def _noisy(self, value: float) -> float:
        return value * self._random.gauss(1.0, self.noise)


def candidates(machines: dict[str, Machine], per_switch: int = 4, shared: bool = False) -> Sequence[Candidate]:
    """A machine each, or `shared`: all on one."""
    return [
        Candidate(name, "host" if shared else f"host-{name}", f"switch{i // per_switch}", name, "cpu")
        for i, name in enumerate(machines)
    ]
