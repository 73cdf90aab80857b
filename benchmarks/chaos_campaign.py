"""One run of `chaos.py`: injects faults, watches the controller's reaction, repairs, and records what happened."""

import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chaos_faults import KINDS, Kind, Strike
from chaos_hosts import Hosts
from common import Json

from holdfast.base.errors import HoldfastError

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
    """The incident names it, and no incident names another node."""
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
    unprotected: list[str] = field(default_factory=list)
    """Nodes of the job without a peer copy of their snapshots from after the strike."""
    first_step: int = -1
    last_step: int = -1


@dataclass
class Blow:
    """An injection under way."""

    kind: Kind
    strike: Strike
    done: Injection
    at: float = 0.0

    @property
    def culprit(self) -> str:
        return self.kind.culprit.format(rank=self.strike.rank, node=self.strike.node, switch="s1")

    def undo(self) -> None:
        """End the fault, once."""
        with suppress(HoldfastError, OSError):
            self.strike.undo()
        self.strike.undo = lambda: None


@dataclass
class Result:
    injections: list[Injection] = field(default_factory=list)
    false_alarms: list[str] = field(default_factory=list)
    quiet_s: float = 0.0
    losses: dict[int, float] = field(default_factory=dict)
    """By step."""


class Campaign:
    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.client = hosts, hosts.client
        self.result = Result()
        self.failure = ""
        self._known: set[str] = set()
        self._quiet_since = time.monotonic()
        self._late: set[str] = set()
        self.client.submit(_job(folder))

    # --- looking ---------------------------------------------------------------------------------------------------

    def _read_losses(self) -> None:
        rows = self.client.steps(max(-1, max(self.result.losses, default=-1) - 50))
        for step, loss in zip(rows["step"], rows["loss"], strict=True):
            if loss is not None:
                self.result.losses.setdefault(step, loss)

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

    def settle(self, what: str, seconds: float = SETTLE_S) -> None:
        """Nothing is open, and training is some steps ahead. TimeoutError, RuntimeError."""
        self.hosts.wait(f"{what}: incidents over", seconds, self._is_over)
        until = self._job()["step"] + MORE_STEPS
        self.hosts.wait(f"{what}: more steps", SETTLE_S, lambda: self._job()["step"] >= until)

    def calm(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.hosts.keep()
            self._read_losses()
            time.sleep(min(2.0, max(0.0, until - time.monotonic())))

    def _end_quiet(self) -> None:
        """Incidents since the last healthy state are false alarms."""
        self.result.quiet_s += time.monotonic() - self._quiet_since
        for one in self._new():
            self._known.add(one["id"])
            if one["kind"] not in self._late:
                self.result.false_alarms.append(_said(one) + ": " + one["summary"][:200])
                print(f"  FALSE ALARM {self.result.false_alarms[-1]}", file=sys.stderr, flush=True)

    # --- striking --------------------------------------------------------------------------------------------------

    def inject(self, names: Sequence[str], draw: random.Random) -> None:
        """Faults at different places at once, from the strike to the repair. `failure`: why it can't go on."""
        self.calm(draw.random())
        job = self._job()
        nodes = [one["node"] for one in job["assignment"]]
        self._end_quiet()
        blows = []
        for name, rank in zip(names, draw.sample(range(WORLD), len(names)), strict=True):
            done = Injection(name, f"rank{rank} on {nodes[rank]}", first_step=job["step"])
            blows.append(Blow(KINDS[name], Strike(self.hosts, name, rank, nodes[rank], rank, draw, job), done))
        self.result.injections += [blow.done for blow in blows]
        is_over = False
        try:
            for blow in blows:
                blow.at = time.time()
                blow.kind.strike(blow.strike)
            self._watch(blows)
        except (TimeoutError, RuntimeError, HoldfastError, OSError) as error:
            print(f"  {', '.join(names)}: {error}", file=sys.stderr, flush=True)
        with suppress(HoldfastError, RuntimeError):
            is_over = self._is_over()  # before anything is repaired
        for blow in blows:
            blow.undo()
        try:
            gone = self.hosts.wait("a controller", SETTLE_S, lambda: [self._gone(blows, nodes)])[0]
            blows[0].done.wrongly_evicted = gone
            self.hosts.repair()
            self.settle("after the repair")
        except (TimeoutError, RuntimeError, HoldfastError) as error:
            self.failure = f"after {', '.join(names)}: {error}"
        self._judge(blows, is_over and not self.failure)
        self._late = {kind for blow in blows for kind in blow.kind.beside}
        self._quiet_since = time.monotonic()

    def _watch(self, blows: list[Blow]) -> None:
        """Until all were found and dealt with, by whatever the policy says. TimeoutError, RuntimeError."""
        wait, generation = self.hosts.wait, blows[0].strike.job["generation"]
        left = list(blows)

        def is_of(blow: Blow, incident: Json) -> bool:
            return _finds(incident, blow.kind) and (len(blows) == 1 or incident["culprit"] == blow.culprit)

        def all_found() -> bool:
            new = self._new()
            for blow in [one for one in left if any(is_of(one, incident) for incident in new)]:
                left.remove(blow)
                if blow.kind.end == "found":
                    blow.undo()
            return not left

        patience = max(blow.kind.patience_s for blow in blows)
        wait("a finding for each", patience, all_found)
        if any(blow.kind.ends_generation for blow in blows):
            wait("the next generation", SETTLE_S, lambda: self._job()["generation"] > generation)
        wait("incidents over", SETTLE_S, self._is_over)

    def _gone(self, blows: list[Blow], before: list[str]) -> list[str]:
        """Nodes that were evicted and should not have been."""
        status = self.client.status()
        after = {one["node"] for one in status["job"]["assignment"]}
        out = {name for name, state in status["nodes"].items() if state in ("faulty", "lost")}
        allowed = {blow.strike.node for blow in blows if "evict" in blow.kind.moves}
        return sorted(((set(before) - after) | out) - allowed)

    def _judge(self, blows: list[Blow], is_resumed: bool) -> None:
        try:
            new, step = self._new(), self.client.status()["job"]["step"]
            first = blows[0].done.first_step
            blows[0].done.unprotected = [
                node["name"] for node in self.client.nodes()
                if node["ranks"] and node["host"].get("snapshot_peer_step", -1) < first
            ]  # fmt: skip
            self._read_losses()
        except HoldfastError as error:
            self.failure = f"no controller: {error}"
            return
        self._known |= {one["id"] for one in new}
        explained: set[str] = set()
        for blow in blows:
            kind, done = blow.kind, blow.done
            right = [one for one in new if _finds(one, kind)]
            exact = [one for one in new if one["kind"] in kind.finds and one["culprit"] == blow.culprit]
            explained |= {one["id"] for one in [*exact, *(i for i in new if i["kind"] in kind.beside)]}
            done.is_found, done.is_culprit_right = bool(right), bool(exact)
            best = next((one for one in right if one in exact), right[0] if right else None)
            done.is_rung_right = best is not None and best["action"] in kind.moves
            done.is_resumed, done.last_step = is_resumed, step
            done.said = [_said(one) for one in new if one in right or one in exact]
            if best is not None:
                done.detect_s = min(f["at"] for f in best["findings"] if f["kind"] in kind.finds) - blow.at
                if best["action"] in ("restart", "evict", "shrink", "diagnose") and best["closed"]:
                    done.recover_s = best["closed"] - blow.at
        blows[0].done.extra = [_said(one) for one in new if one["id"] not in explained]
        for blow in blows:
            print(f"{len(self.result.injections)} {asdict(blow.done)}", file=sys.stderr, flush=True)

    # --- the end ---------------------------------------------------------------------------------------------------

    def end(self) -> None:
        if not self.failure:
            self._end_quiet()
        with suppress(HoldfastError):
            self._read_losses()
            self.client.stop(0.0)


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
