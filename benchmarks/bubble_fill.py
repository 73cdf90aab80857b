"""Whether the copy of a snapshot belongs into the bubble: none, copied from the start of a step on, copied in waits.

python benchmarks/bubble_fill.py [--ranks 2 4] [--rounds 3] [--steps 8] [--micro-batches 4] [--json]

Pipelines of 1F1B, beside a checkpoint daemon, with a snapshot after every step. A snapshot's thread begins to copy at
once, beside the next step's first computations (what Holdfast does). In the bubble, here alone, it copies a megabyte at
a time, only while its rank waits for a message, and the rest when the step's last backward wants it. Systems take
turns, in an order that alternates; a figure is the median over runs of rank 0's median, the first three left out.
`exposed`: what the snapshot is waited for. `data`: reading, which could be done in the bubble too.
"""

import argparse
import functools
import json
import os
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "workers"))
from common import Json, finish, parser, scratch
from turns import forked, store
from uploading import daemon

from holdfast.trainer.preload import preload

SYSTEMS = ("none", "at once", "in the bubble")
COLD = 3
PIECE = 1 << 18
"""Elements that are copied between two looks at whether the rank still waits."""


def train(folder: Path, options: argparse.Namespace, system: str, ranks: int, rank: int, port: int) -> None:
    memory = folder / "memory"
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo", "HOLDFAST_SNAPSHOTS": str(memory), "HOLDFAST_JOB": "bench",
    }  # fmt: skip
    from holdfast.checkpoint.worker.stage1 import Snapshots
    from holdfast.trainer.__main__ import parse
    from holdfast.trainer.run import loop
    from holdfast.trainer.settings.launch import from_environment

    if system == "in the bubble":
        gate()
    waited, snapshots = [0.0], []
    made = Snapshots.__init__

    def noted(self: Any, *args: Any) -> None:
        made(self, *args)
        snapshots.append(self)

    Snapshots.__init__ = noted  # type: ignore[method-assign]
    for name in ("settle", "wait_copied"):
        _timed(Snapshots, name, waited)
    settings = {
        "model.d_model": 512, "model.layers": 2 * ranks, "model.heads": 8, "data.seq_len": 128,
        "data.cache_dir": folder, "data.path": Path(os.__file__).parent / "json", "data.suffixes": '[".py"]',
        "train.micro_batch_size": 2, "train.micro_batches": options.micro_batches,
        "train.steps": COLD + options.steps, "train.log_every": 0, "parallel.pp": ranks,
        "checkpoint.store": (folder / "store").as_uri(), "checkpoint.every": 0, "checkpoint.peers": "false",
        "checkpoint.snapshot_every": int(system != "none"), "train.metrics_path": folder / "metrics.jsonl",
    }  # fmt: skip
    step, exposed, taken = loop.Trainer.step, [], []

    def watched(self: Any, number: int) -> Any:
        waited[0] = 0.0
        totals = step(self, number)
        exposed.append(waited[0])
        taken.append(snapshots[-1].taken if snapshots else 0)
        return totals

    loop.Trainer.step = watched  # type: ignore[method-assign]
    loop.run(parse([w for k, v in settings.items() for w in ("--set", f"{k}={v}")]), from_environment(os.environ))
    assert system == "none" or taken[-1] >= options.steps, f"{taken[-1]} snapshots were taken"
    (folder / f"exposed{rank}.json").write_text(json.dumps(exposed))
    os._exit(0)


def _timed(owner: Any, name: str, spent: list[float]) -> None:
    original = getattr(owner, name)

    def timed(*args: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*args)
        finally:
            spent[0] += time.perf_counter() - began

    setattr(owner, name, timed)


def gate() -> None:
    """A snapshot is copied while its rank waits for messages, and without regard when the step wants it."""
    import torch

    from holdfast.checkpoint.worker.snapshot import Snapshotter
    from holdfast.checkpoint.worker.stage1 import Snapshots
    from holdfast.trainer.pipeline import messages

    idle = threading.Event()

    def copied(self: Any, task: Any) -> None:
        with torch.no_grad():
            for target, tensor in zip(self._targets[task.slot], task.tensors, strict=True):
                pairs = zip(target.view(-1).split(PIECE), tensor.detach().reshape(-1).split(PIECE), strict=True)
                for into, piece in pairs:
                    idle.wait()
                    into.copy_(piece)
        idle.wait()  # checksums follow

    def waiting(work: Any) -> None:
        if work is not None:
            idle.set()
            work.wait()
            idle.clear()

    settle = Snapshots.settle

    def wanted(self: Any) -> None:
        idle.set()
        settle(self)
        idle.clear()

    Snapshotter._copy = copied  # type: ignore[method-assign]
    Snapshots.settle = wanted  # type: ignore[method-assign]
    messages._wait = waiting


def measure(options: argparse.Namespace, system: str, ranks: int) -> Json:
    """Medians over steps, in ms: of rank 0, `exposed` of the rank with the most."""
    with scratch() as folder, daemon(folder / "memory", "n0"):
        keeper, port = store()
        pids = [forked(functools.partial(train, folder, options, system, ranks, rank, port)) for rank in range(ranks)]
        try:
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        finally:
            os.kill(keeper, 9)
            os.waitpid(keeper, 0)
        if any(codes):
            raise SystemExit(f"bubble_fill.py: ranks ended with {codes}")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()[COLD:]]
        exposed = [json.loads((folder / f"exposed{rank}.json").read_text())[COLD:] for rank in range(ranks)]
    return {
        "step": 1e3 * median(line["seconds"] for line in lines),
        "exposed": max(1e3 * median(one) for one in exposed),
        "data": 1e3 * median(line["parts_s"]["data"] for line in lines),
        "bubble": 1e3 * median(line["parts_s"]["bubble"] for line in lines),
    }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    made.add_argument("--rounds", type=int, default=3, help="runs of each")
    made.add_argument("--steps", type=int, default=8, help="of a run, those that count")
    made.add_argument("--micro-batches", type=int, default=4)
    options = made.parse_args()
    preload()
    medians: Json = {}
    rows: list[list[object]] = []
    for ranks in options.ranks:
        found: dict[str, list[Json]] = {system: [] for system in SYSTEMS}
        for turn in range(options.rounds):
            for system in SYSTEMS[:: -1 if turn % 2 else 1]:
                found[system].append(measure(options, system, ranks))
        for system, runs in found.items():
            row = {name: median(run[name] for run in runs) for name in runs[0]}
            medians[f"{ranks} ranks, {system}"] = row | {"runs": runs}
            rows.append([f"{ranks} ranks, {system}", *(f"{row[n]:.1f}" for n in ("step", "exposed", "data", "bubble"))])
    finish({"medians_ms": medians}, options.json, ["snapshot", "step ms", "exposed", "data", "bubble"], rows)


if __name__ == "__main__":
    main()
