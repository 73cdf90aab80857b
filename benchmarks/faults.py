"""One seeded schedule of faults, one small trainer, every launcher that is installed: what each finds, how soon, at
what cost.

    python benchmarks/faults.py [--json] [--rounds 3] [--only holdfast --only torchrun] [--faults crash,stop]

Two nodes (agents) with two workers each on this machine. *detect*: from the fault until the launcher acts, as seen from
outside (a worker that was well is ended, or one that stands still); where nothing is seen, the recovery counts.
*recover*: until a step was done that the fault had been in the way of. *lost*: steps done again. *whole*: until all
ranks step again, for systems that go on with fewer. A system that did not recover within `--deadline` is started
afresh, and the deadline counts; a standstill, which only some watcher's own limit ends, has `--hang-deadline`. Goal for
Holdfast at its defaults: detect <= 1 s, recover <= 2 s, no committed step lost.

ETTR is steps that were kept, at their median time, over wall time, with a fault after every 20 steps and up to half a
second. Beside it stands what the formula of `holdfast.controller.simulation.formula` expects.

Systems are looked for in this Python's environment, or in that whose Python `FAULTS_NVRX`, `FAULTS_DLROVER` or
`FAULTS_TORCHFT` names; it must have PyTorch, too.
"""

import os
import signal
import sys
import time
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Any

from common import finish, parser, scratch
from fault_account import FAULTS, Account, Line, Outcome, Strike, schedule, steps_again
from fault_systems import EVERY, SYSTEMS, System

NODES, PER = 2, 2
WORLD = NODES * PER
HANGS = ("stop", "gil")
START_S = 180.0
WHOLE_S = 10.0  # what a system that goes on with fewer gets, to become whole


class Run:
    """A system at work, seen only from outside: the script's own lines, and /proc."""

    def __init__(self, kind: type[System], folder: Path, spare: bool = False, shrink: bool = False) -> None:
        self.system = kind(folder, NODES, PER, spare, shrink)
        self.system.begin()
        self.folder = folder

    def lines(self, rank: int, tail: int = 0) -> list[Line]:
        """The steps that a rank finished; with `tail`, those within that many last bytes."""
        try:
            with open(self.folder / f"rank{rank}.log", "rb") as log:
                if tail:
                    log.seek(max(0, log.seek(0, os.SEEK_END) - tail))
                    log.readline()
                rows = [row.split() for row in log.read().splitlines(keepends=True) if row.endswith(b"\n")]
        except FileNotFoundError:
            return []
        return [Line(int(row[0]), int(row[1]), float(row[2])) for row in rows if len(row) == 3]

    def newest(self) -> dict[int, Line]:
        """The last step of each rank that has finished any, ranks of spares included."""
        ranks = (int(path.stem.removeprefix("rank")) for path in self.folder.glob("rank*.log"))
        return {rank: lines[-1] for rank in ranks if (lines := self.lines(rank, 4096))}

    def wait_steps(self, count: int, deadline_s: float = START_S) -> bool:
        goal, end = len(self.lines(0)) + count, time.monotonic() + deadline_s
        while len(self.lines(0)) < goal:
            if time.monotonic() > end or self.system.has_ended():
                return False
            time.sleep(0.02)
        return True

    def wait_whole(self, since: float, without: set[int], deadline_s: float) -> bool:
        """Do all ranks step together, none of them one of these processes, or of those that have ended?"""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            newest = {rank: line for rank, line in self.newest().items() if rank < WORLD}
            steps = [line.step for line in newest.values() if line.at > since and line.pid not in without]
            if len(steps) == WORLD and max(steps) - min(steps) <= 1 and all(alive(one.pid) for one in newest.values()):
                return True
            time.sleep(0.02)
        return False


def alive(pid: int) -> bool:
    """Runs, or at least is no zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"


def hit(run: Run, strike: Strike, worker: int) -> set[int]:
    """Break something; the processes that the fault itself took."""
    if strike.fault.startswith("node"):
        victims = set(run.system.on_node(NODES - 1))  # the first may host the others' rendezvous
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return victims
    if strike.fault == "gil":
        (run.folder / f"gil-{strike.rank}").touch()
    else:
        number = {"crash": signal.SIGKILL, "stop": signal.SIGSTOP, "segfault": signal.SIGSEGV}[strike.fault]
        os.kill(worker, number)
    return {worker}


def measure(run: Run, strike: Strike, deadline_s: float) -> Outcome:
    time.sleep(strike.after_s)
    workers = {rank: line.pid for rank, line in run.newest().items()}
    before = set(workers.values())
    struck = time.time()
    victims = hit(run, strike, workers[strike.rank])
    others = before - victims
    # Those of victims last: what they had given when the others' steps were read, is in them.
    ranks = sorted(workers, key=lambda rank: workers[rank] in victims)
    done = max(line.step for rank in ranks for line in run.lines(rank, 4096))
    frozen = victims if strike.fault in HANGS else set()
    detect, end = None, time.monotonic() + deadline_s
    while time.monotonic() < end and not run.system.has_ended():
        if detect is None and not all(alive(pid) for pid in others | frozen):
            detect = time.time() - struck
        lines = [line for rank in ranks for line in run.lines(rank, 4096)]
        if again := steps_again(lines, before, victims, struck):
            recover = again.at - struck
            outcome = Outcome(min(detect or recover, recover), recover, True, struck, done, again.step)
            if not strike.fault.startswith("node") and run.wait_whole(struck, victims, WHOLE_S):
                outcome.whole_s = min(line.at for line in run.newest().values()) - struck
            return outcome
        time.sleep(0.01)
    checkpoint = (done + 1) // run.system.every * run.system.every
    return Outcome(detect or deadline_s, deadline_s, False, struck, done, checkpoint)


def play(kind: type[System], options: Any, folder: Path) -> Account:
    """All faults of the schedule, each on workers that have found their stride."""
    account = Account(kind.every)
    number = 0
    run: Run | None = None
    shape = ""
    for strike in schedule(options.seed, options.faults.split(","), options.rounds, WORLD):
        fault = strike.fault
        if fault in account.notes:
            continue
        if fault in kind.cannot:
            account.notes[fault] = kind.cannot[fault]
            continue
        wanted = fault if fault.startswith("node") else "plain"
        if run is None or shape != wanted or wanted != "plain":
            if run is not None:
                run.system.close()
            number += 1
            run = Run(kind, folder / f"{kind.name}{number}", wanted == "node-spare", wanted == "node-shrink")
            shape = wanted
            if not run.wait_steps(2 * EVERY) or not run.wait_whole(0.0, set(), START_S):
                account.notes[fault] = "did not start"
                run.system.close()
                run = None
                continue
        began, first = time.time(), run.lines(0)[-1].step
        if not run.wait_steps(2 * EVERY):
            account.notes[fault] = "stood still before the fault"
            run.system.close()
            run = None
            continue
        account.gaps_s += [b.at - a.at for a, b in pairwise(run.lines(0)[-EVERY:])]
        outcome = measure(run, strike, limit(fault, options))
        account.add(fault, outcome, began, first)
        print(f"{kind.name}: {fault}: {outcome}", file=sys.stderr, flush=True)
        if outcome.whole_s != outcome.whole_s:  # it goes on with fewer, or not at all
            run.system.close()
            run = None
    if run is not None:
        run.system.close()
    return account


def main() -> None:
    cli = parser(__doc__)
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--seed", type=int, default=1)
    cli.add_argument("--deadline", type=float, default=60.0, help="seconds that a recovery may take")
    cli.add_argument("--hang-deadline", type=float, default=30.0, help="the same where a worker stands still")
    cli.add_argument("--faults", default=",".join(FAULTS))
    cli.add_argument("--only", action="append", choices=[kind.name for kind in SYSTEMS])
    cli.add_argument("--folder", type=Path, help="a new folder for all logs, which stays")
    options = cli.parse_args()
    if unknown := set(options.faults.split(",")) - set(FAULTS):
        raise SystemExit(f"unknown faults {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    accounts: dict[str, Account] = {}
    absent: dict[str, str] = {}
    with nullcontext(options.folder) if options.folder else scratch() as folder:
        for kind in SYSTEMS:
            if kind.name not in options.only if options.only else kind.only_if_named:
                continue
            if why := kind.missing():
                absent[kind.name] = why
                continue
            began = time.monotonic()
            accounts[kind.name] = play(kind, options, folder)
            print(f"{kind.name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    report(accounts, absent, options)


def report(accounts: dict[str, Account], absent: dict[str, str], options: Any) -> None:
    rows: list[tuple[object, ...]] = []
    result: dict[str, Any] = {"medians_s": {}, "detect_s": {}, "lost_steps": {}, "ettr": {}, "recovered": {}}
    result["not_run"] = absent
    for kind in SYSTEMS:
        name = kind.name
        if name in absent:
            rows.append((name, "not run", "", "", "", "", absent[name]))
        if name not in accounts:
            continue
        account = accounts[name]
        if everything := [one.recover_s for each in account.outcomes.values() for one in each]:
            result["medians_s"][name] = median_low(everything)
        for fault in options.faults.split(","):
            outcomes = account.outcomes.get(fault, [])
            if not outcomes:
                rows.append((name, fault, "", "", "", "", account.notes.get(fault, "not run")))
                continue
            detect = median_low(one.detect_s for one in outcomes)
            recover = median_low(one.recover_s for one in outcomes)
            back = [one for one in outcomes if one.recovered]
            lost = median_low(one.lost for one in back) if back else ""
            wholes = [one.whole_s for one in back if one.whole_s == one.whole_s]
            rows.append((
                name, fault, _within(detect, limit(fault, options)), _within(recover, limit(fault, options)),
                median_low(wholes) if wholes else "", lost, f"{len(back)} of {len(outcomes)}",
            ))  # fmt: skip
            result["detect_s"].setdefault(name, {})[fault] = detect
            result["lost_steps"].setdefault(name, {})[fault] = lost if back else None
            result["recovered"].setdefault(name, {})[fault] = [len(back), len(outcomes)]
        result["ettr"][name] = {"measured": account.ettr, "by_formula": account.ettr_by_formula}
        beside = f"by formula {account.ettr_by_formula:.3f}"
        rows.append((name, "ETTR, a fault every 20 steps", "", account.ettr, "", "", beside))
        if kind.tuned:
            rows.append((name, f"set: {kind.tuned}", "", "", "", "", ""))
    head = ("system", "fault", "detect, median s", "recover, median s", "whole again, s", "steps lost", "recovered")
    finish(result, options.json, head, rows)


def limit(fault: str, options: Any) -> float:
    """Seconds that a recovery may take."""
    return float(options.hang_deadline if fault in HANGS else options.deadline)


def _within(seconds: float, deadline_s: float) -> object:
    return seconds if seconds < deadline_s else f"not within {deadline_s:g} s"


if __name__ == "__main__":
    main()
