"""What checkpoints cost and how fast state comes back, next to other systems, on the same state.

python benchmarks/checkpoint.py [--only blocking steps upload restore] [--size-mb 1024] [--peers PYTHON] [--json]
python benchmarks/checkpoint.py --only steps --device cuda [--rounds 4] [--trainer layers=8 samples=64]

    blocking  how long training waits for one save, first time and median of 20: a snapshot, waited for at once and with
              computation in between, a plain copy of the same bytes, torch.save, DCP, DLRover, lm-resiliency
    steps     the trainer with a snapshot after every step against the same with none, turn by turn
    upload    a snapshot through the node's daemon to HDFS and to a folder, against plain writes of the same bytes
    restore   from memory, a peer's memory and HDFS, with each byte read once and passed on or read by every rank

Files and HDFS's blocks lie in memory: what is measured is the systems, not a disk. HDFS is real, a NameNode and two
DataNodes, two copies of each block. The two others are found in the environment of another Python, which needs torch
too (--peers, or HOLDFAST_BENCH_PEERS): pip install --no-deps dlrover==0.6.1 lm-resiliency==0.2.0
"""

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from common import Json, finish, free_port, parser, quantile, scratch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "workers"))

CLOSE_WAIT_S = 0.5  # of hdfs-native, before it asks again whether the NameNode has heard of the last block
PARTS = ("blocking", "steps", "upload", "restore")
PEERS = ("DLRover", "lm-resiliency")
SYSTEMS = (
    "holdfast", "memcpy", "torch.save", "DCP save", "DCP async_save", "DCP async_save, shared memory",
    "DCP async_save, shared memory, process", *PEERS,
)  # fmt: skip
DEADLINE_S = 900.0
Row = list[object]


def worker(script: str, *words: object, python: str = sys.executable) -> subprocess.Popen[str]:
    """A worker with a session of its own, so that nothing of it stays."""
    root = str(HERE.parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    command = [python, str(HERE / "workers" / script), *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
                            start_new_session=True)  # fmt: skip


def answer(process: "subprocess.Popen[str]", problem: str = "") -> Json:
    """What it printed, or `problem`: its last line on standard error."""
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        out, err = "", f"not done after {DEADLINE_S:g} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode == 0 and out:
        found: Json = json.loads(out.splitlines()[-1])
        return found
    return {"problem": (err.strip().splitlines() or ["it died"])[-1][:200]}


def result_of(process: "subprocess.Popen[str]") -> Json:
    """As `answer`; exits if there is none."""
    found = answer(process)
    if "problem" in found:
        raise SystemExit(f"benchmarks/checkpoint.py: {found['problem']}")
    return found


def blocking(options: argparse.Namespace) -> tuple[Json, list[Row]]:
    every: Json = {}
    for name in SYSTEMS:
        python = options.peers if name in PEERS else sys.executable
        with scratch() as folder:
            words = ("--size-mb", options.size_mb, "--saves", options.saves, "--folder", folder)
            every[name] = answer(worker("blocking_save.py", name, *words, python=python))
    firsts = {name: one["times_s"][0] for name, one in every.items() if "times_s" in one}
    medians = {name: median(one["times_s"][1:]) for name, one in every.items() if "times_s" in one}
    rows: list[Row] = []
    if "holdfast" in medians:
        ours = every["holdfast"]
        floor = median(ours["floor_s"][1:])
        exposed = [a / b for a, b in zip(ours["times_s"][1:], ours["floor_s"][1:], strict=True)]
        waits = [a + b for a, b in zip(ours["begin_s"], ours["wait_s"], strict=True)]
        slower = [a - b for a, b in zip(ours["beside_s"][1:], ours["alone_s"][1:], strict=True)]
        medians["holdfast, overlapped"] = median(waits[1:])
        firsts["holdfast, overlapped"] = waits[0]
        every["holdfast"] |= {"over_memcpy": median(exposed), "overlapped_step_longer_s": median(slower)}
        rows.append(["blocking: holdfast, copy waited for / memcpy, alternating", median(exposed), "", "<= 1.1"])
        rows.append(["blocking: holdfast, step longer with the copy beside it", median(slower), "", ""])
        rows.append(["blocking: memcpy, alternating with it", floor, "", ""])
    for name in ("holdfast, overlapped", *SYSTEMS):
        problem = every.get(name, {}).get("problem", "")
        rows.append([f"blocking: {name}", medians.get(name, problem), firsts.get(name, ""), ""])
    return {"blocking": every, "medians_s": medians, "first_s": firsts}, rows


def steps(options: argparse.Namespace) -> tuple[Json, list[Row]]:
    sizes = [word for one in options.trainer for word in (f"--{one.partition('=')[0]}", one.partition("=")[2])]
    found = result_of(worker("snapshot_steps.py", "--rounds", options.rounds, "--device", options.device, *sizes))
    goal = "<= 0.03" if options.device == "cpu" else "<= 0.01"
    rows: list[Row] = []
    for ranks, one in found.items():
        pairs = zip(one["every step"], one["none"], strict=True)
        one["share_lost"] = median(a / b for a, b in pairs) - 1
        one["share_lost_of_medians"] = median(one["every step"]) / median(one["none"]) - 1
        one["cpu_share"] = median(one["cpu"]["every step"]) / median(one["cpu"]["none"]) - 1
        size = f"{ranks} x {one['snapshot_bytes'] / 1e6:.0f} MB"
        rows.append([f"steps: {size}, a snapshot after each: time lost", one["share_lost"], "", goal])
        rows.append([f"steps: {size}, CPU time more", one["cpu_share"], "", ""])
        rows.append([f"steps: {size}, seconds of a step without", median(one["none"]), "", ""])
    return {"steps": found}, rows


@contextmanager
def hdfs() -> Iterator[Any]:
    """A real HDFS with blocks of 128 MiB, as the tests start it."""
    path = HERE.parent / "tests" / "checkpoint" / "hdfs_cluster.py"
    spec = importlib.util.spec_from_file_location("hdfs_cluster", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.BLOCK_BYTES = 128 << 20
    with scratch() as folder:
        try:
            cluster = module.HdfsCluster(folder)
        except module.Unavailable as error:
            raise SystemExit(f"benchmarks/checkpoint.py: no HDFS: {error}") from None
        with cluster:
            yield cluster


def upload(options: argparse.Namespace) -> tuple[Json, list[Row]]:
    with hdfs() as cluster:
        servers = [process.pid for process in (cluster.namenode, *cluster.datanodes)]
        words = ("--size-mb", options.size_mb, "--rounds", options.uploads, "--hdfs", cluster.url)
        found = result_of(worker("uploading.py", *words, "--servers", *servers))
    size = found["bytes"] / 1e6
    rows: list[Row] = []
    for place, alone in (("hdfs", "hdfs-native alone"), ("file", "a plain file, fsync")):
        ours, plain = found[place]["ours"], found[place]["plain"]
        goal = ">= 0.9" if place == "hdfs" else ""
        rows.append([f"upload: {place}://, MB/s", size / median(one["seconds"] for one in ours), "", ""])
        rows.append([f"upload: {alone}, MB/s", size / median(one["seconds"] for one in plain), "", ""])
        for until, key in (("until committed", "seconds"), ("until the part is stored", "written_s")):
            shares = [b[key] / a[key] for a, b in zip(ours, plain, strict=True)]
            found[place][f"share_{key}"] = shares
            rows.append([f"upload: {place}://, share of that, {until}", median(shares), "", goal])
            rows += [["   a quartile of these", quantile(shares, q), "", ""] for q in (0.25, 0.75)]
        for what, key in (("writer", "cpu_s"), ("HDFS's servers", "servers_cpu_s")):
            for name, turns in ((f"{place}://", ours), (alone, plain)):
                spent = median(one[key] for one in turns) / size * 1e3
                if spent:
                    rows.append([f"upload: {name}, processor seconds of the {what} a GB", spent, "", ""])
    waits = sum(seconds > CLOSE_WAIT_S / 2 for seconds in found["closes"]) / len(found["closes"])
    rows.append([f"upload: hdfs-native alone, small files that take {CLOSE_WAIT_S:g} s to close, share", waits, "", ""])
    return {"upload": found}, rows


def restore(options: argparse.Namespace) -> tuple[Json, list[Row]]:
    every: Json = {}
    rows: list[Row] = []
    with hdfs() as cluster:
        for dp in options.dp:
            with scratch() as folder:
                words = ("--port", free_port(), "--size-mb", options.size_mb, "--store", f"{cluster.url}/dp{dp}",
                         "--folder", folder, "--rounds", 3)  # fmt: skip
                ranks = [worker("restoring.py", rank, dp, *words) for rank in range(dp)]
                try:
                    every[str(dp)] = result_of(ranks[0])
                finally:
                    for rank in ranks:
                        rank.kill()
                        rank.wait()
            for source, rounds in every[str(dp)].items():
                seconds, num_bytes = median(one[0] for one in rounds), rounds[-1][1]
                rows.append([f"restore: dp {dp}, {source} ({num_bytes / 1e6:.1f} MB read)", seconds, rounds[0][0], ""])
    return {"restore": every}, rows


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    made.add_argument("--size-mb", type=float, default=1024, help="of the state, 10^6 bytes")
    made.add_argument("--saves", type=int, default=20, help="after the first one")
    made.add_argument("--rounds", type=int, default=8, help="turns of steps")
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the steps")
    made.add_argument(
        "--trainer", nargs="+", default=[], metavar="NAME=N", help="sizes of the steps' model, as layers=8"
    )
    made.add_argument("--uploads", type=int, default=12, help="turns of uploads")
    made.add_argument("--dp", type=int, nargs="+", default=[1, 2, 4], help="replicas that restore")
    made.add_argument("--peers", default=os.environ.get("HOLDFAST_BENCH_PEERS", sys.executable), metavar="PYTHON")
    options = made.parse_args()
    if min(options.saves, options.rounds, options.uploads, *options.dp) < 1 or options.size_mb <= 0:
        made.error("sizes and counts are 1 or more")
    work: dict[str, Any] = {"blocking": blocking, "steps": steps, "upload": upload, "restore": restore}
    result: Json = {"size_mb": options.size_mb}
    rows: list[Sequence[object]] = []
    for part in options.only:
        found, more = work[part](options)
        result |= found
        rows += more
        print(f"{part}: done", file=sys.stderr, flush=True)
    finish(result, options.json, ["what", "s, or share", "first", "goal"], rows)


if __name__ == "__main__":
    main()
