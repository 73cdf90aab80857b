"""From SIGKILL of one of 8 workers to the first new step done: Holdfast against torchrun, in turns.

python benchmarks/recovery.py [--json] [--rounds 5]

Both run the same embedded trainer with the same settings: pp 2 x dp 2 x tp 2, a checkpoint every 5 steps to a store of
their own (file://). In each round a worker drawn at random is killed at a moment drawn at random, once for each
system; the other one is stopped (SIGSTOP) meanwhile, so that each has the machine to itself. The time is read from the
trainer's metrics file, the same way for both: the first line that was written after the last line of the old
generation and that a new process wrote.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from common import finish, free_port, parser, scratch

from holdfast.cli.local import leftovers
from holdfast.cli.local.cluster import LocalCluster

WORLD = 8
TIMEOUT_S = 180.0


def arguments(folder: Path) -> list[str]:
    """The trainer's flags. Steps without end: the benchmark stops it."""
    flags = {"--steps": 1_000_000, "--pp": 2, "--dp": 2, "--tp": 2, "--checkpoint-every": 5,
             "--store": (folder / "store").as_uri()}  # fmt: skip
    settings = {"train.metrics_path": folder / "metrics.jsonl", "train.log_every": 0}
    words = [str(word) for pair in flags.items() for word in pair]
    return [*words, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]


def environment() -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    return env | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


class System:
    """A running job of one of the two: its metrics, its workers by rank, and how to halt it."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics = folder / "metrics.jsonl"

    def steps(self) -> list[tuple[int, float]]:
        """Step and Unix time of its end, in the order of writing; the last line may be half-written."""
        if not self.metrics.exists():
            return []
        lines = self.metrics.read_text().split("\n")[:-1]
        return [(line["step"], line["time"]) for line in map(json.loads, lines)]

    def processes(self) -> list[int]:
        """All that its roots started."""
        return [pid for root in self.roots() for pid in descendants(root)]

    def worker(self, rank: int) -> int:
        raise NotImplementedError

    def wait_steps(self, count: int) -> None:
        """Wait for so many more lines."""
        goal = len(self.steps()) + count
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.steps()) < goal:
            self.check()
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.name}: no steps within {TIMEOUT_S:g} s")
            time.sleep(0.02)

    def check(self) -> None:
        """Fail when the system gave up."""

    def roots(self) -> list[int]:
        """Processes that it consists of, without those that they started."""
        raise NotImplementedError

    def signal(self, number: signal.Signals) -> None:
        """Halt or wake all of it. The leaders are halted first and woken last: they must see no silent follower."""
        roots = self.roots()
        rest = [pid for pid in self.processes() if pid not in roots]
        for pid in [*roots, *rest] if number == signal.SIGSTOP else [*rest, *reversed(roots)]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def fault(self, rank: int, moment: float) -> float:
        """Kill a worker; seconds until a step was done again."""
        time.sleep(moment)
        pid = self.worker(rank)
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        # A step under way may still be reported by ranks that finished it: what counts is a generation's first line,
        # which repeats a step or follows a pause in which the workers were others.
        before = self.generation()
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            self.check()
            after = [(step, at) for step, at in self.steps() if at > killed]
            if self.generation() > before and after:
                began = self.began()
                new = [at for _, at in after if at > began]
                if new:
                    return new[0] - killed
            time.sleep(0.02)
        raise SystemExit(f"{self.name}: did not recover within {TIMEOUT_S:g} s")

    def generation(self) -> int:
        raise NotImplementedError

    def began(self) -> float:
        """Unix time at which the workers of the running generation were started."""
        raise NotImplementedError


def descendants(root: int) -> list[int]:
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                children = [int(word) for word in (task / "children").read_text().split()]
                found += children
                queue += children
        except OSError:
            continue
    return found


def comm_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def started_at(pid: int) -> float:
    """Unix time of a process's start, to a hundredth of a second."""
    text = Path(f"/proc/{pid}/stat").read_text()
    ticks = int(text[text.rindex(")") + 2 :].split()[19])
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot + ticks / os.sysconf("SC_CLK_TCK")


class Holdfast(System):
    name = "holdfast"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cluster = LocalCluster(folder / "state", nodes=2, slots=4)
        self.cluster.start()

    def begin(self) -> None:
        program = {"target": "holdfast.trainer", "args": arguments(self.folder), "module": True, "cwd": os.getcwd(),
                   "env": {"OMP_NUM_THREADS": "1"}, "hooks": False, "warm": True}  # fmt: skip
        self.cluster.client.submit({"name": "bench", "program": program, "nnodes": 2, "nproc_per_node": 4,
                                    "max_restarts": 1000})  # fmt: skip

    def check(self) -> None:
        job = self.cluster.client.job()
        if self.cluster.failure or (job and job["state"] in ("failed", "finished", "stopped")):
            raise SystemExit(f"holdfast: {self.cluster.failure or job}")

    def roots(self) -> list[int]:
        return list(self.cluster.pids().values())

    def processes(self) -> list[int]:
        """By their mark: a fork server is its agent's child only where another agent's was not forked for it."""
        environment = Path(f"/proc/{self.roots()[0]}/environ").read_text().split("\0")
        (mark,) = (pair for pair in environment if pair.startswith(f"{leftovers.MARK}="))
        return leftovers.marked(mark)

    def generation(self) -> int:
        job = self.cluster.client.job()
        return int(job["generation"]) if job else 0

    def worker(self, rank: int) -> int:
        comm = f"holdfast-r{rank}\n"
        return next(pid for pid in self.processes() if comm_of(pid) == comm)

    def began(self) -> float:
        return started_at(self.worker(0))

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.cluster.stop()


class Torchrun(System):
    name = "torchrun"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        argv = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(WORLD)]
        argv += ["--max-restarts", "10", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        argv += ["-m", "holdfast.trainer", *arguments(self.folder)]
        with open(self.folder / "torchrun.log", "ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, env=environment())

    def check(self) -> None:
        assert self.process is not None
        if self.process.poll() is not None:
            raise SystemExit(f"torchrun ended: {(self.folder / 'torchrun.log').read_text()[-2000:]}")

    def roots(self) -> list[int]:
        assert self.process is not None
        return [self.process.pid]

    def environments(self) -> dict[int, dict[str, str]]:
        found = {}
        for pid in descendants(self.roots()[0]):
            try:
                pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            found[pid] = dict(pair.partition("=")[::2] for pair in pairs if "=" in pair)
        return {pid: env for pid, env in found.items() if "RANK" in env}

    def generation(self) -> int:
        return max((int(env["TORCHELASTIC_RESTART_COUNT"]) for env in self.environments().values()), default=-1)

    def worker(self, rank: int) -> int:
        newest = str(self.generation())
        return next(
            pid
            for pid, env in self.environments().items()
            if env["RANK"] == str(rank) and env["TORCHELASTIC_RESTART_COUNT"] == newest
        )

    def began(self) -> float:
        try:
            return started_at(self.worker(0))
        except (StopIteration, OSError):
            return time.time()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                for pid in [*descendants(self.process.pid), self.process.pid]:
                    os.kill(pid, signal.SIGKILL)
                self.process.wait()


def main() -> None:
    cli = parser(__doc__)
    cli.add_argument("--rounds", type=int, default=5)
    cli.add_argument("--seed", type=int, default=1)
    cli.add_argument("--only", choices=["holdfast", "torchrun"])
    options = cli.parse_args()
    draw = random.Random(options.seed)
    kinds = [kind for kind in (Holdfast, Torchrun) if options.only in (None, kind.name)]
    times: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    with scratch() as folder:
        systems: list[Any] = []
        try:
            for kind in kinds:
                system = kind(folder / kind.name)
                systems.append(system)
                system.begin()
                system.wait_steps(6)
                system.signal(signal.SIGSTOP)
            for number in range(options.rounds):
                rank, moment = draw.randrange(WORLD), draw.random() * 3
                for system in systems:
                    system.signal(signal.SIGCONT)
                    system.wait_steps(6)  # so that both have a checkpoint and their stride
                    times[system.name].append(system.fault(rank, moment))
                    print(f"round {number}: {system.name} {times[system.name][-1]:.2f} s", file=sys.stderr, flush=True)
                    system.wait_steps(2)
                    system.signal(signal.SIGSTOP)
        finally:
            for system in systems:
                system.close()
    report(times, options)


def report(times: dict[str, list[float]], options: Any) -> None:
    medians = {name: median(values) for name, values in times.items()}
    result: dict[str, Any] = {"medians_s": medians, "times_s": times, "rounds": options.rounds}
    rows: list[tuple[object, ...]] = [
        (name, medians[name], min(values), max(values), "<= 3" if name == "holdfast" else "")
        for name, values in times.items()
    ]
    if len(medians) == 2:
        result["ratio"] = medians["torchrun"] / medians["holdfast"]
        rows.append(("torchrun / holdfast", result["ratio"], "", "", ">= 10"))
    finish(result, options.json, ("kill to first new step", "median, s", "min, s", "max, s", "goal"), rows)


if __name__ == "__main__":
    main()
