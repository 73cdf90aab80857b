"""One run of `chaos.py`: strikes, watches what the controller makes of it, repairs, and writes down what happened."""

import os
import random
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chaos_faults import EVICT, KINDS, RESTART, Kind, Strike
from chaos_hosts import Hosts
from common import Json

from holdfast.errors import HoldfastError

WORLD = 8
MORE_STEPS = 5
SETTLE_S = 75.0


@dataclass
class Injection:
    kind: str
    place: str
    is_found: bool = False
    """An incident, or a finding in one, of the right kind."""
    is_culprit_right: bool = False
    """The incident names it, and no incident names anybody else."""
    is_rung_right: bool = False
    is_resumed: bool = False
    """All incidents are over, and training is more steps ahead."""
    detect_s: float | None = None
    recover_s: float | None = None
    """From the strike to the first step of a new generation; None where training never stopped."""
    said: list[str] = field(default_factory=list)
    """The incidents: kind, culprit, action."""
    extra: list[str] = field(default_factory=list)
    """Incidents that are neither right nor a consequence."""
    wrongly_evicted: list[str] = field(default_factory=list)
    first_step: int = -1
    last_step: int = -1
    is_loss_equal: bool | None = None
    """Of the steps from this strike to the next one; None: not compared."""


@dataclass
class Result:
    injections: list[Injection] = field(default_factory=list)
    false_alarms: list[str] = field(default_factory=list)
    quiet_s: float = 0.0
    steps: int = 0
    steps_compared: int = 0
    steps_differing: int = 0


class Campaign:
    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.client = hosts, hosts.client
        self.result = Result()
        self.losses: dict[int, float] = {}
        self.failure = ""
        self._known: set[str] = set()
        self._quiet_since = time.monotonic()
        self._late: Kind | None = None
        self.client.submit(_job(folder))

    # --- looking ---------------------------------------------------------------------------------------------------

    def _read_losses(self) -> None:
        rows = self.client.steps(max(-1, max(self.losses, default=-1) - 50))
        for step, loss in zip(rows["step"], rows["loss"], strict=True):
            if loss is not None:
                self.losses.setdefault(step, loss)

    def _job(self) -> Json:
        job: Json = self.client.status()["job"]
        if job["state"] in ("failed", "stopped", "finished"):
            raise RuntimeError(f"the job has ended: {job['state']}, {job['reason']}")
        return job

    def _new(self) -> list[Json]:
        """Incidents that were not there before, oldest first, of the newest twenty."""
        return [one for one in reversed(self.client.status()["incidents"]) if one["id"] not in self._known]

    def _is_over(self) -> bool:
        """Nothing new is open, and the job runs."""
        is_open = any(one["state"] in ("open", "recovering") and one["action"] != "alert" for one in self._new())
        return not is_open and bool(self._job()["state"] == "running")

    def settle(self, what: str) -> None:
        """Nothing is open, and training is some steps ahead. TimeoutError, RuntimeError."""
        self.hosts.wait(f"{what}: incidents over", SETTLE_S, self._is_over)
        until = self._job()["step"] + MORE_STEPS
        self.hosts.wait(f"{what}: more steps", SETTLE_S, lambda: self._job()["step"] >= until)

    def calm(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.hosts.keep()
            self._read_losses()
            time.sleep(min(2.0, max(0.0, until - time.monotonic())))

    def _end_quiet(self) -> None:
        """What came up since nothing was wrong is a false alarm."""
        self.result.quiet_s += time.monotonic() - self._quiet_since
        for one in self._new():
            self._known.add(one["id"])
            if self._late is None or one["kind"] not in self._late.beside:
                self.result.false_alarms.append(_said(one) + ": " + one["summary"][:200])
                print(f"  FALSE ALARM {self.result.false_alarms[-1]}", file=sys.stderr, flush=True)

    # --- striking --------------------------------------------------------------------------------------------------

    def inject(self, name: str, draw: random.Random) -> None:
        """One fault, from the strike to the repair. `failure` is set when the campaign can't go on."""
        kind, rank = KINDS[name], draw.randrange(WORLD)
        self.calm(draw.random())
        job = self._job()
        nodes = [one["node"] for one in job["assignment"]]
        strike = Strike(self.hosts, name, rank, nodes[rank], rank, draw, job)
        self._end_quiet()
        done = Injection(name, f"rank{rank} on {nodes[rank]}", first_step=job["step"])
        self.result.injections.append(done)
        at, is_over = time.time(), False
        try:
            kind.strike(strike)
            self._watch(kind, strike)
            is_over = True
        except (TimeoutError, RuntimeError, HoldfastError, OSError) as error:
            print(f"  {name}: {error}", file=sys.stderr, flush=True)
        with suppress(HoldfastError, OSError):
            strike.undo()
        try:
            done.wrongly_evicted = self.hosts.wait("a controller", SETTLE_S, lambda: [self._gone(strike, nodes)])[0]
            self.hosts.repair()
            self.settle("after the repair")
            done.is_resumed = is_over
        except (TimeoutError, RuntimeError, HoldfastError) as error:
            self.failure = f"after {name} at {done.place}: {error}"
        self._judge(kind, done, {"rank": rank, "node": nodes[rank], "switch": "s1"}, at)
        print(f"{len(self.result.injections)} {asdict(done)}", file=sys.stderr, flush=True)
        self._late = kind
        self._quiet_since = time.monotonic()

    def _watch(self, kind: Kind, strike: Strike) -> None:
        """Until it was found and dealt with, by whatever the policy says. TimeoutError, RuntimeError."""
        wait, generation = self.hosts.wait, strike.job["generation"]
        wait(f"{strike.kind}: a finding", kind.patience_s, lambda: any(_finds(one, kind) for one in self._new()))
        if kind.end == "found":
            strike.undo()
        elif not {*kind.moves}.isdisjoint(RESTART + EVICT):
            wait(f"{strike.kind}: the next generation", SETTLE_S, lambda: self._job()["generation"] > generation)
        wait(f"{strike.kind}: incidents over", SETTLE_S, self._is_over)

    def _gone(self, strike: Strike, before: list[str]) -> list[str]:
        """Nodes that were taken out and should not have been."""
        status = self.client.status()
        after = {one["node"] for one in status["job"]["assignment"]}
        out = {name for name, state in status["nodes"].items() if state in ("faulty", "lost")}
        allowed = {strike.node} if "evict" in KINDS[strike.kind].moves else set()
        return sorted(((set(before) - after) | out) - allowed)

    def _judge(self, kind: Kind, done: Injection, names: dict[str, object], at: float) -> None:
        try:
            new = self._new()
            done.last_step = self.client.status()["job"]["step"]
            self._read_losses()
        except HoldfastError as error:
            self.failure = f"no controller: {error}"
            return
        self._known |= {one["id"] for one in new}
        culprit = kind.culprit.format(**names)
        right = [one for one in new if _finds(one, kind)]
        exact = [one for one in new if one["kind"] in kind.finds and one["culprit"] == culprit]
        done.said = [_said(one) for one in new]
        done.is_found = bool(right)
        done.is_culprit_right = bool(exact)
        done.is_rung_right = bool(right) and right[0]["action"] in kind.moves
        done.extra = [_said(one) for one in new if one not in exact and one["kind"] not in kind.beside]
        if right:
            done.detect_s = min(f["at"] for f in right[0]["findings"] if f["kind"] in kind.finds) - at
            if right[0]["action"] in ("restart", "evict", "shrink", "diagnose") and right[0]["closed"]:
                done.recover_s = right[0]["closed"] - at

    # --- the end ---------------------------------------------------------------------------------------------------

    def end(self) -> None:
        if not self.failure:
            self._end_quiet()
        with suppress(HoldfastError):
            self._read_losses()
            self.result.steps = max(self.losses, default=-1) + 1
            self.client.stop(0.0)

    def compare(self, calm: dict[int, float]) -> None:
        """With the losses of a run in which nothing broke, as far as that went."""
        both = self.losses.keys() & calm.keys()
        wrong = {step for step in both if self.losses[step] != calm[step]}
        self.result.steps_compared, self.result.steps_differing = len(both), len(wrong)
        ends = [one.first_step for one in self.result.injections[1:]] + [max(both, default=-1)]
        for one, end in zip(self.result.injections, ends, strict=True):
            steps = both & set(range(one.first_step, end + 1))
            one.is_loss_equal = not wrong & steps if steps else None


def _finds(incident: Json, kind: Kind) -> bool:
    said = {finding["kind"] for finding in incident["findings"]}
    return bool(said & set(kind.finds)) and said >= set(kind.evidence)


def _said(incident: Json) -> str:
    return f"{incident['kind']} {incident['culprit']} {incident['action']}"


def _job(folder: Path) -> Json:
    settings: dict[str, Any] = {
        "model.layers": 2, "model.d_model": 32, "model.heads": 4, "data.seq_len": 32, "train.log_every": 0,
        "train.micro_batches": 4, "data.max_bytes": 1 << 20, "data.cache_dir": folder / "cache",
        "checkpoint.every": 50, "checkpoint.store": (folder / "store").as_uri(),
    }  # fmt: skip
    args = ["--pp", "2", "--dp", "2", "--tp", "2", "--steps", "1000000"]
    args += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    program = {"target": "holdfast.trainer", "args": args, "module": True, "cwd": os.getcwd(),
               "env": {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}, "hooks": True, "warm": True}  # fmt: skip
    return {"name": "chaos", "program": program, "nnodes": WORLD, "nproc_per_node": 1, "max_restarts": 100_000}
