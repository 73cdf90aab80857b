"""What an agent costs its node: CPU time, memory, and step time of the training that it watches.

python benchmarks/agent_cost.py [--json] [--seconds 20] [--alternations 8] [--only load|steps]

Load: one agent with a controller, 8 NICs in a synthetic sysfs whose counters move, 8 workers that make 10 steps a
second and report them; nothing of it needs torch. Bare: a thread that reads the same counters as often and does nothing
else, which is what this machine takes for waking up. Steps: the embedded trainer, one process, in blocks of steps: one
copy runs as a worker of an agent that samples 8 NICs every millisecond, another runs alone while agent and controller
are stopped (SIGSTOP); they take turns.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from common import (
    Json,
    child_pids,
    cpu_seconds,
    end,
    finish,
    free_port,
    get,
    memory_mb,
    parser,
    quantile,
    scratch,
    synthetic_sysfs,
    wait_for,
)

from holdfast.agent.collectors.nic import choose
from holdfast.agent.sampling.sweeps import Sweeps
from holdfast.agent.sampling.ticks import Ticks
from holdfast.cli.common.client import Client
from holdfast.cli.local.cluster import LocalCluster

NICS = 8
WORKERS = 8
HERE = Path(__file__).parent
# As large as a CPU takes in some 40 ms, in one thread.
TRAINER = ("--steps", "1000000", "--set", "train.log_every=0", "--set", "train.micro_batches=2",
           "--set", "data.max_bytes=1000000")  # fmt: skip


@contextmanager
def moving_counters(sysfs: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that counts up all byte counters about every millisecond, in place, as a kernel does."""
    process = subprocess.Popen([sys.executable, str(HERE / "workers" / "counters.py"), str(sysfs)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def submit(client: Client, script: str, args: list[str], nproc: int, **more: Any) -> str:
    program = {"target": str(HERE / "workers" / script), "args": args, "module": False, "cwd": os.getcwd(),
               "env": {"OMP_NUM_THREADS": "1"}, "hooks": False, "warm": True} | more  # fmt: skip
    return client.submit({"name": script, "program": program, "nnodes": 1, "nproc_per_node": nproc,
                          "max_restarts": 0})  # fmt: skip


def steps_of(client: Client) -> int:
    job = client.job()
    return int(job["step"]) if job else -1


def load(folder: Path, interval: float, seconds: float) -> Json:
    sysfs = synthetic_sysfs(folder / "sys", NICS)
    flags = ["--sysfs-root", str(sysfs), "--nics", "auto", "--preload", "", "--sample-interval", str(interval)]
    with moving_counters(sysfs), LocalCluster(folder / "state", slots=WORKERS, agent_flags=flags) as cluster:
        client = cluster.client
        submit(client, "stepping.py", ["--seconds", "0.1"], WORKERS)
        wait_for("steps", 60, lambda: steps_of(client) > 20)
        pid = cluster.pids()["node0"]
        warm = child_pids(pid)
        shares = []
        before, first, began = cpu_seconds(pid), steps_of(client), time.monotonic()
        last, at = before, began
        while time.monotonic() < began + seconds:
            time.sleep(min(5.0, seconds))
            now, cpu = time.monotonic(), cpu_seconds(pid)
            shares.append((cpu - last) / (now - at))
            last, at = cpu, now
        rss, pss = memory_mb(pid)
        taken = samples_per_second(cluster.http)
        return {
            "cpu_share": (last - before) / (at - began), "cpu_share_worst_5s": max(shares), "rss_mb": rss,
            "pss_mb": pss, "warm_pss_mb": sum(memory_mb(p)[1] for p in warm), "samples_per_second": taken,
            "steps_per_second": (steps_of(client) - first) / (time.monotonic() - began),
        }  # fmt: skip


def bare(folder: Path, interval: float, seconds: float) -> float:
    """Share of a core of the sampler's own loop, alone in a thread."""
    sysfs = synthetic_sysfs(folder / "sys", NICS)
    paths = [path for pair in choose(str(sysfs)) for path in (pair.tx_path, pair.rx_path)]
    files = array("i", [os.open(path, os.O_RDONLY) for path in paths])
    sweeps, ticks, took = Sweeps(1000, len(files)), Ticks(round(interval * 1e9)), 0.0

    def loop() -> None:
        nonlocal took
        began = time.thread_time()
        sweeps.run(files, ticks, round(seconds / interval))
        took = time.thread_time() - began

    with moving_counters(sysfs):
        thread = threading.Thread(target=loop)
        thread.start()
        thread.join()
    ticks.close()
    for file in files:
        os.close(file)
    return took / seconds


def samples_per_second(http: str) -> float:
    """What of the samples of one NIC arrived in the last seconds, per second."""
    nics = json.loads(get(http, "/api/v1/nodes/node0/traffic?seconds=5"))["nics"]
    times = nics[0]["t"]
    return (len(times) - 1) / (times[-1] - times[0]) * 1000


class Copy:
    """One copy of the trainer, at its gate."""

    def __init__(self, line: socket.socket) -> None:
        self.line, self.answers = line, line.makefile("r")
        self.name = json.loads(self.answers.readline())["name"]

    def block(self) -> Json:
        self.line.sendall(b"go\n")
        answer: Json = json.loads(self.answers.readline())
        return answer


def steps(folder: Path, alternations: int, block: int, restarts: int) -> Json:
    """Ratios of the medians of two blocks next to each other, watched over alone."""
    sysfs = synthetic_sysfs(folder / "sys", NICS)
    flags = ["--sysfs-root", str(sysfs), "--nics", "auto", "--sample-interval", "0.001", "--preload", ""]
    walls, cpus, medians = [], [], {"watched": [], "alone": []}  # type: ignore[var-annotated]
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    # Else a job of one, which is another thing for the trainer.
    env |= {"OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    with LocalCluster(folder / "state", slots=1, agent_flags=flags) as cluster:
        for turn in range(restarts):
            where = str(folder / f"gate{turn}")
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(where)
            listener.listen(2)
            args = ["gated_trainer.py", where, "{}", str(block), *TRAINER]
            job = [a.format("watched") for a in args[1:]]
            # A fresh interpreter for both: a fork shares pages and is another thing to compare.
            submit(cluster.client, "gated_trainer.py", job, 1, warm=False)
            alone = subprocess.Popen(
                [sys.executable, str(HERE / "workers" / args[0]), *[a.format("alone") for a in args[1:]]],
                env=env | {"MASTER_PORT": str(free_port())},
            )
            try:
                copies = {copy.name: copy for copy in (Copy(listener.accept()[0]) for _ in range(2))}
                pids = list(cluster.pids().values())
                for copy in copies.values():
                    copy.block()  # the first steps are no measure
                for n in range(alternations):
                    both = {}
                    for name in ("watched", "alone") if n % 2 else ("alone", "watched"):
                        # The controller first: it must not see the silence of the agent.
                        if name == "alone":
                            signal_all(pids, signal.SIGSTOP)
                        try:
                            both[name] = copies[name].block()
                        finally:
                            signal_all(pids, signal.SIGCONT)
                        medians[name].append(median(both[name]["wall"]))
                    walls.append(median(both["watched"]["wall"]) / median(both["alone"]["wall"]))
                    cpus.append(median(both["watched"]["cpu"]) / median(both["alone"]["cpu"]))
            finally:
                end(alone)
                cluster.client.stop(0.0)
                wait_for("end of the job", 30, lambda: (cluster.client.job() or {}).get("ended_at"))
                listener.close()
    return {
        "wall_ratios": walls, "cpu_ratios": cpus,
        "step_s": {name: median(values) for name, values in medians.items()},
    }  # fmt: skip


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def main() -> None:
    cli = parser(__doc__)
    cli.add_argument("--seconds", type=float, default=20.0, help="of each measurement of load")
    cli.add_argument("--alternations", type=int, default=8, help="pairs of blocks per pair of processes")
    cli.add_argument("--block", type=int, default=40, help="steps in a block")
    cli.add_argument("--restarts", type=int, default=3, help="pairs of processes")
    cli.add_argument("--only", choices=["load", "steps"])
    options = cli.parse_args()
    result: Json = {}
    rows: list[tuple[object, ...]] = []
    with scratch() as folder:
        if options.only != "steps":
            for name, interval, cpu_goal in (("1 ms", 0.001, 0.08), ("10 ms", 0.01, 0.015)):
                found = result[f"load_{name.replace(' ', '')}"] = load(
                    folder / name[:2].strip(), interval, options.seconds
                )
                found["bare_cpu_share"] = bare(folder / f"bare{name[:2].strip()}", interval, options.seconds / 2)
                rows += [
                    (f"{name}: CPU, share of one core", f"{found['cpu_share']:.2%}", f"<= {cpu_goal:.1%}"),
                    (f"{name}: worst 5 s", f"{found['cpu_share_worst_5s']:.2%}", ""),
                    (f"{name}: bare", f"{found['bare_cpu_share']:.2%}", ""),
                    (f"{name}: RSS / PSS, MB", f"{found['rss_mb']:.1f} / {found['pss_mb']:.1f}", "<= 60"),
                    (f"{name}: fork server without torch, PSS MB", found["warm_pss_mb"], ""),
                    (f"{name}: samples taken per second and NIC", found["samples_per_second"], f"{1 / interval:g}"),
                    (f"{name}: steps per second", found["steps_per_second"], "10"),
                ]
            result["medians_cpu_share"] = {
                "holdfast": result["load_1ms"]["cpu_share"], "holdfast_10ms": result["load_10ms"]["cpu_share"]
            }  # fmt: skip
            result["medians_mb"] = {"holdfast": result["load_1ms"]["rss_mb"]}
        if options.only != "load":
            found = steps(folder, options.alternations, options.block, options.restarts)
            result["steps"] = found
            wall, cpu = median(found["wall_ratios"]), median(found["cpu_ratios"])
            result["medians_step_ratio"] = {"holdfast": wall, "holdfast_cpu_time": cpu}
            for name, ratio, all_of in (("wall", wall, "wall_ratios"), ("CPU", cpu, "cpu_ratios")):
                low, high = quantile(found[all_of], 0.25), quantile(found[all_of], 0.75)
                rows.append((f"step, {name} time: watched / alone, median (quartiles) of {len(found[all_of])}",
                             f"{ratio:.4f} ({low:.4f} to {high:.4f})", "<= 1.01"))  # fmt: skip
            rows.append(("step, ms: watched / alone",
                         " / ".join(f"{v * 1e3:.1f}" for v in found["step_s"].values()), ""))  # fmt: skip
    finish(result, options.json, ("", "measured", "goal"), rows)


if __name__ == "__main__":
    main()
