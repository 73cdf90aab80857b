"""One seeded schedule of faults, one small trainer, every launcher that is installed: who finds what, how soon, at what
cost.

    python benchmarks/faults.py [--json] [--rounds 3] [--only holdfast --only torchrun] [--faults crash,stop]

Two nodes (agents) with two workers each on this machine. *detect*: from the fault until the launcher acts (a worker
that was well is ended, or a new one started). *recover*: until a step was done by new workers. *lost*: steps done
again. A launcher that did not recover within the deadline is started afresh, and the deadline counts. Goal for
Holdfast at its defaults: detect <= 1 s, recover <= 2 s, no committed step lost.

ETTR is steps that were kept, at their median time, over wall time, with a fault after every 20 steps and up to half a
second. Beside it stands what the formula of `holdfast.controller.simulation.formula` expects.
"""

import os
import random
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import finish, parser, quantile, scratch
from fault_systems import SYSTEMS, System

from holdfast.controller.simulation.formula import expected

NODES, PER = 2, 2
WORLD = NODES * PER
FAULTS = ("crash", "stop", "gil", "segfault", "node-spare", "node-shrink")
START_S = 180.0
EVERY = 10  # steps between checkpoints, as the script has it


@dataclass
class Outcome:
    detect_s: float
    recover_s: float
    lost: int
    recovered: bool
    at_s: float = 0.0
    """Unix time of the fault."""
    step: int = 0
    """The first that new workers did."""


@dataclass
class Account:
    """What one system's run was worth."""

    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    step_s: float = 0.0
    kept: int = 0
    """Steps done and not done again."""
    wall_s: float = 0.0
    trained_s: float = 0.0
    """Of that, until the faults."""
    notes: dict[str, str] = field(default_factory=dict)


class Run:
    """A system at work, seen only from outside: the script's own lines, and /proc."""

    def __init__(self, kind: type[System], folder: Path, spare: bool = False, shrink: bool = False) -> None:
        self.system = kind(folder, NODES, PER, spare, shrink)
        self.system.begin()
        self.folder = folder

    def lines(self, rank: int) -> list[tuple[int, int, float]]:
        """(step, process, Unix time) of the steps that a rank finished."""
        try:
            text = (self.folder / f"rank{rank}.log").read_text()
        except FileNotFoundError:
            return []
        found = [line.split() for line in text.splitlines()]
        return [(int(a), int(b), float(c)) for a, b, c in (parts for parts in found if len(parts) == 3)]

    def workers(self) -> dict[int, int]:
        """Process of each rank that has finished a step, newest."""
        return {rank: lines[-1][1] for rank in range(WORLD) if (lines := self.lines(rank))}

    def wait_steps(self, count: int, deadline_s: float = START_S) -> bool:
        goal, end = len(self.lines(0)) + count, time.monotonic() + deadline_s
        while len(self.lines(0)) < goal:
            if time.monotonic() > end or self.system.has_ended():
                return False
            time.sleep(0.02)
        return True


def alive(pid: int) -> bool:
    """Runs, or at least is no zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"


def strike(run: Run, fault: str, draw: random.Random) -> set[int]:
    """Break something; the processes that the fault itself took."""
    workers = run.workers()
    rank = draw.randrange(WORLD)
    if fault.startswith("node"):
        victims = set(run.system.on_node(NODES - 1))  # the first may hold the others' meeting place
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return victims
    if fault == "gil":
        (run.folder / f"gil-{rank}").touch()
    else:
        number = {"crash": signal.SIGKILL, "stop": signal.SIGSTOP, "segfault": signal.SIGSEGV}[fault]
        os.kill(workers[rank], number)
    return {workers[rank]}


def measure(run: Run, fault: str, draw: random.Random, deadline_s: float) -> Outcome:
    time.sleep(draw.random() * 0.5)
    before = run.workers()
    struck = time.time()
    victims = strike(run, fault, draw)
    others = set(before.values()) - victims
    done = max(lines[-1][0] for rank in range(WORLD) if (lines := run.lines(rank)))
    detect, end = float("nan"), time.monotonic() + deadline_s
    while time.monotonic() < end:
        if detect != detect and (not all(alive(pid) for pid in others) or _frozen_ended(fault, victims)):
            detect = time.time() - struck
        new = [(step, at) for rank in range(WORLD) for step, pid, at in run.lines(rank)[-3:]
               if at > struck and pid not in before.values()]  # fmt: skip
        if new:
            step, at = min(new, key=lambda one: one[1])
            recover = at - struck
            return Outcome(
                min(detect, recover) if detect == detect else recover, recover, max(0, done + 1 - step), True,
                struck, step,
            )  # fmt: skip
        time.sleep(0.01)
    return Outcome(detect if detect == detect else deadline_s, deadline_s, 0, False, struck)


def _frozen_ended(fault: str, victims: set[int]) -> bool:
    """A worker that was stopped or stuck, and that somebody ended."""
    return fault in ("stop", "gil") and not all(alive(pid) for pid in victims)


def play(kind: type[System], options: Any, folder: Path) -> Account:
    """All faults of the schedule, each on workers that have found their stride."""
    account, draw = Account(), random.Random(options.seed)
    gaps: list[float] = []
    number = 0
    run: Run | None = None
    shape = ""
    for fault in options.faults.split(","):
        if fault.startswith("node") and not kind.spares:
            account.notes[fault] = "one node only"
            continue
        for _ in range(options.rounds):
            wanted = fault if fault.startswith("node") else "plain"
            if run is None or shape != wanted or wanted != "plain":
                if run is not None:
                    run.system.close()
                number += 1
                run = Run(kind, folder / f"{kind.name}{number}", wanted == "node-spare", wanted == "node-shrink")
                shape = wanted
                if not run.wait_steps(2 * EVERY):
                    account.notes[fault] = "did not start"
                    run.system.close()
                    run = None
                    break
            began, first = time.time(), run.lines(0)[-1][0]
            if not run.wait_steps(2 * EVERY):
                account.notes[fault] = "stood still"
                run.system.close()
                run = None
                break
            times = [at for _, _, at in run.lines(0)[-EVERY:]]
            gaps += [b - a for a, b in pairwise(times)]
            outcome = measure(run, fault, draw, options.deadline)
            account.outcomes.setdefault(fault, []).append(outcome)
            print(f"{kind.name}: {fault}: {outcome}", file=sys.stderr, flush=True)
            account.wall_s += outcome.at_s + outcome.recover_s - began
            account.trained_s += outcome.at_s - began
            account.kept += max(0, outcome.step - first - 1)
            if not outcome.recovered:
                run.system.close()
                run = None
    if run is not None:
        run.system.close()
    account.step_s = quantile(gaps, 0.5)
    return account


def predicted(account: Account) -> float:
    """ETTR by formula, from how often faults came, how long recovery took, and how far apart checkpoints are."""
    outcomes = [one for each in account.outcomes.values() for one in each]
    if not outcomes:
        return float("nan")
    pause = sum(one.recover_s for one in outcomes) / len(outcomes)
    return expected(len(outcomes) / account.trained_s, pause, EVERY * account.step_s)


def main() -> None:
    cli = parser(__doc__)
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--seed", type=int, default=1)
    cli.add_argument("--deadline", type=float, default=60.0, help="seconds that a recovery may take")
    cli.add_argument("--faults", default=",".join(FAULTS))
    cli.add_argument("--only", action="append", choices=[kind.name for kind in SYSTEMS])
    options = cli.parse_args()
    if unknown := set(options.faults.split(",")) - set(FAULTS):
        raise SystemExit(f"unknown faults {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    accounts: dict[str, Account] = {}
    with scratch() as folder:
        for kind in SYSTEMS:
            if options.only and kind.name not in options.only:
                continue
            if why := kind.missing():
                print(f"{kind.name}: not run: {why}", file=sys.stderr)
                continue
            accounts[kind.name] = play(kind, options, folder)
    report(accounts, options)


def report(accounts: dict[str, Account], options: Any) -> None:
    rows: list[tuple[object, ...]] = []
    result: dict[str, Any] = {"medians_s": {}, "detect_s": {}, "lost_steps": {}, "ettr": {}, "recovered": {}}
    tuned = {kind.name: kind.tuned for kind in SYSTEMS}
    for name, account in accounts.items():
        everything = [one.recover_s for each in account.outcomes.values() for one in each]
        result["medians_s"][name] = quantile(everything, 0.5)
        for fault in options.faults.split(","):
            outcomes = account.outcomes.get(fault, [])
            if not outcomes:
                rows.append((name, fault, "", "", "", account.notes.get(fault, "not run")))
                continue
            back = sum(one.recovered for one in outcomes)
            cells = [
                quantile([getattr(one, key) for one in outcomes], 0.5) for key in ("detect_s", "recover_s", "lost")
            ]
            rows.append((name, fault, *cells, f"{back} of {len(outcomes)}"))
            result["detect_s"].setdefault(name, {})[fault] = cells[0]
            result["lost_steps"].setdefault(name, {})[fault] = cells[2]
            result["recovered"].setdefault(name, {})[fault] = [back, len(outcomes)]
        measured = account.kept * account.step_s / account.wall_s if account.wall_s else float("nan")
        result["ettr"][name] = {"measured": measured, "by_formula": predicted(account)}
        rows.append((name, "ETTR, a fault every 20 steps", "", measured, "", f"by formula {predicted(account):.3f}"))
        if tuned[name]:
            rows.append((name, f"set: {tuned[name]}", "", "", "", ""))
    head = ("system", "fault", "detect, median s", "recover, median s", "steps lost", "recovered")
    finish(result, options.json, head, rows)


if __name__ == "__main__":
    main()
