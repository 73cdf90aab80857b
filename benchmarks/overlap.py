"""Exposed communication and step time of tensor parallelism over a slow link, whole, in chunks and in sub-batches.

python benchmarks/overlap.py [--rate 1gbit] [--chunks 1 4] [--sub-batches 2] [--rounds 3] [--steps 8] [--json]

Two ranks of `holdfast train --tp 2` in a network namespace of their own, whose loopback carries so much a second
(`tc` and `unshare` needed, root not). Runs with and without chunks take turns, in an order that alternates; a figure
is the median over runs of the median step, the first three left out. Exposed: what a rank waits for and nothing hides.
"""

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from common import Json, finish, parser, scratch
from turns import forked, store

from holdfast.trainer.preload import preload

INSIDE = "HOLDFAST_BENCHMARK_INSIDE"
NAMESPACE = ["unshare", "--net", "--map-root-user", "sh", "-c"]
RATE = "HOLDFAST_BENCHMARK_RATE"
LINK = f"""ip link set lo up && {{
    [ "${RATE}" = 0 ] || tc qdisc add dev lo root tbf rate "${RATE}" burst 256k latency 2s
}}"""
COLD = 3
"""Steps of a run that do not count: processes wake up, connections open."""
RANKS = 2


@dataclass(frozen=True, slots=True)
class Way:
    sequence: bool
    chunks: int = 1
    parts: int = 1
    """Sub-batches of a micro-batch."""

    def __str__(self) -> str:
        way = "sequence parallel" if self.sequence else "all-reduce"
        return f"{way}, {self.chunks} chunks" if self.parts == 1 else f"{way}, {self.parts} sub-batches"


def train(folder: Path, options: argparse.Namespace, way: Way, rank: int, port: int) -> None:
    from holdfast.trainer.__main__ import parse
    from holdfast.trainer.run import loop
    from holdfast.trainer.settings.launch import from_environment

    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    settings = {
        "model.d_model": options.width, "model.layers": 3, "model.ffn_width": options.width * 11 // 4,
        "model.block": "serial", "model.mlp": "swiglu", "data.seq_len": 256, "data.cache_dir": folder,
        "data.path": Path(os.__file__).parent / "json", "data.suffixes": '[".py"]', "train.micro_batch_size": 4,
        "train.micro_batches": 1, "train.steps": COLD + options.steps, "train.log_every": 0, "parallel.tp": RANKS,
        "parallel.sequence": str(way.sequence).lower(), "parallel.overlap_chunks": way.chunks,
        "parallel.sub_batches": way.parts,
        "train.metrics_path": folder / "metrics.jsonl",
    }  # fmt: skip
    argv = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    loop.run(parse(argv), from_environment(os.environ))
    os._exit(0)


def measure(options: argparse.Namespace, way: Way) -> tuple[float, float]:
    """Milliseconds of a step, and of it exposed."""
    with scratch() as folder:
        keeper, port = store()
        pids = [forked(functools.partial(train, folder, options, way, rank, port)) for rank in range(RANKS)]
        try:
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        finally:
            os.kill(keeper, 9)
            os.waitpid(keeper, 0)
        if any(codes):
            raise SystemExit(f"overlap.py: ranks ended with {codes}")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()[COLD:]]
    exposed = [line["parts_s"]["communication"] for line in lines]
    return 1e3 * median(line["seconds"] for line in lines), 1e3 * median(exposed)


def compared(options: argparse.Namespace) -> tuple[Json, list[list[object]]]:
    result: Json = {"rate": options.rate, "medians_ms": {}}
    rows: list[list[object]] = []
    for sequence in (True, False):
        ways = [Way(sequence, chunks) for chunks in options.chunks]
        ways += [] if sequence else [Way(sequence, parts=parts) for parts in options.sub_batches]
        found: dict[Way, list[tuple[float, float]]] = {way: [] for way in ways}
        for turn in range(options.rounds):
            for way in ways[:: -1 if turn % 2 else 1]:
                found[way].append(measure(options, way))
        first = found[ways[0]]
        for way, runs in found.items():
            step, exposed = (median(values) for values in zip(*runs, strict=True))
            ratios = [[a / b for a, b in zip(run, base, strict=True)] for run, base in zip(runs, first, strict=True)]
            of_step, of_exposed = (median(values) for values in zip(*ratios, strict=True))
            name = str(way)
            result["medians_ms"][name] = {"step": step, "exposed": exposed, "runs": runs}
            rows.append([name, f"{step:.0f}", f"{exposed:.0f}", f"{of_step:.2f}", f"{of_exposed:.2f}"])
    return result, rows


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--rate", default="1gbit", help="of the link, as tc writes it; 0: unlimited")
    made.add_argument("--chunks", type=int, nargs="+", default=[1, 4], help="the first is what others are held to")
    made.add_argument("--sub-batches", type=int, nargs="*", default=[2], help="of a micro-batch, with all-reduces")
    made.add_argument("--rounds", type=int, default=3, help="runs of each")
    made.add_argument("--steps", type=int, default=8, help="of a run, those that count")
    made.add_argument("--width", type=int, default=512)
    options = made.parse_args()
    if INSIDE not in os.environ:
        if missing := [tool for tool in ("unshare", "ip", "tc") if shutil.which(tool) is None]:
            made.error(f"needs {', '.join(missing)}")
        again = [*NAMESPACE, f'{LINK} && exec "$@"', "sh", sys.executable, *sys.argv]
        inside = {**os.environ, INSIDE: "1", RATE: options.rate}
        raise SystemExit(subprocess.run(again, env=inside, check=False).returncode)
    preload()
    result, rows = compared(options)
    head = [f"over {options.rate}", "step ms", "exposed ms", "step, to the first", "exposed, to the first"]
    finish(result, options.json, head, rows)


if __name__ == "__main__":
    main()
