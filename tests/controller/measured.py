"""Nodes that are made up, with what a diagnosis would measure of them, in virtual time."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.controller.diagnosing import Ask, DiagnoseSession
from holdfast.controller.diagnosis_verdicts import Candidate
from holdfast.controller.model import Instant
from holdfast.diagnostics.results import CheckResult, Fault, Reading


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


@dataclass
class Bench:
    """`run()` plays a session to its end: node checks take 3 s, pairs 2 s."""

    machines: dict[str, Machine]
    noise: float = 0.03
    seed: int = 0
    now: float = 1000.0
    sent: list[Ask] = field(default_factory=list)

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
        return session

    def _takes(self, ask: Ask) -> float:
        return 2.0 if "pair" in ask.order.checks else 3.0

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
            faults = (Fault("a matrix product is wrong", "cpu"),) if machine.wrong else ()
            return CheckResult(name, (Reading("flops", self._noisy(1e11 * machine.speed * dip), "cpu"),), faults)
        if name == "memory":
            return CheckResult(name, (Reading("bandwidth", self._noisy(1e10)),))
        if name == "pair":
            if options["role"] == "server":
                return CheckResult(name)
            other = next(m for n, m in self.machines.items() if n == options["address"])
            if machine.dead or other.dead:
                return CheckResult(name, error="no way to its partner")
            loss = max(machine.loss, other.loss)
            return CheckResult(
                name,
                (
                    Reading("bandwidth", self._noisy(1e9 * min(machine.link, other.link))),
                    Reading("loss", loss),
                    Reading("clock_offset", abs(machine.offset - other.offset)),
                ),
            )
        return CheckResult(name)

    def _noisy(self, value: float) -> float:
        return value * self._random.gauss(1.0, self.noise)


def candidates(machines: dict[str, Machine], per_switch: int = 4, shared: bool = False) -> Sequence[Candidate]:
    """A machine each, or `shared`: all on one."""
    return [
        Candidate(name, "host" if shared else f"host-{name}", f"switch{i // per_switch}", name, "cpu")
        for i, name in enumerate(machines)
    ]
