"""What snapshots at every step cost the trainer. Started by `checkpoint.py`.

python snapshot_steps.py --processes 1 2 --rounds 8 --steps 4

Two jobs of the same model beside a checkpoint daemon, one with a snapshot after every step, one with none; they take
turns, so many steps a turn, in an order that alternates, while the other one stands still. Prints a JSON object: for
each number of ranks the seconds of a step in each turn, by system, those of CPU that all its ranks used for it, which
depend less on what else the machine did, and the bytes of one rank's snapshot.
"""

import argparse
import functools
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import trainer_cpu
from common import cpu_seconds, scratch
from turns import DEADLINE_S, Gate, System, forked, store
from uploading import daemon

from holdfast.trainer.preload import preload

SYSTEMS = {"every step": 1, "none": 0}
SIZES = {
    "cpu": {"layers": 6, "width": 512, "heads": 8, "inner": 1408, "length": 128, "samples": 8, "micro_batch": 2},
    "cuda": {"layers": 8, "width": 2048, "heads": 16, "inner": 5632, "length": 2048, "samples": 64, "micro_batch": 8},
}
"""By device. On a GPU a step takes some 0.8 s, and a snapshot has 5.8 GB."""
SLOTS = {"cpu": 3, "cuda": 2}
GPU = ("train.dtype=bfloat16", "train.deterministic=false")
_WARM_TURNS = 30


def measure(options: argparse.Namespace, ranks: int, folder: Path) -> dict[str, Any]:
    listener = socket.socket(socket.AF_UNIX)
    where = str(folder / f"gate{ranks}")
    listener.bind(where)
    listener.listen(16)
    listener.settimeout(DEADLINE_S)
    systems = {name: System() for name in SYSTEMS}
    memory = folder / f"memory{ranks}"
    pids: list[int] = []
    ranks_of: dict[str, list[int]] = {name: [] for name in SYSTEMS}

    def rank(name: str, number: int, port: int) -> None:
        os.environ |= {
            "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo", "HOLDFAST_SNAPSHOTS": str(memory), "HOLDFAST_JOB": "bench",
        }  # fmt: skip
        kept = folder / f"{name.replace(' ', '-')}{ranks}"
        options.set = [f"checkpoint.store={kept.as_uri()}", "checkpoint.every=0"]
        options.set += [f"checkpoint.snapshot_every={SYSTEMS[name]}", "checkpoint.peers=false"]
        options.set += [f"checkpoint.slots={SLOTS[options.device]}", f"parallel.device={options.device}"]
        options.set += GPU if options.device == "cuda" else ()
        gate = Gate(where, name, options.steps)
        trainer_cpu.ours(options, ranks, {"parallel.zero": options.zero}, folder, gate)

    with daemon(memory, f"n{ranks}"):
        try:
            for name in systems:
                pid, port = store()
                pids.append(pid)
                for number in range(ranks):
                    pids.append(forked(functools.partial(rank, name, number, port)))
                    ranks_of[name].append(pids[-1])
            for _ in range(ranks * len(systems)):
                line, _ = listener.accept()
                line.settimeout(DEADLINE_S)
                answers = line.makefile("r")
                systems[json.loads(answers.readline())["system"]].lines.append((line, answers))
            for system in systems.values():
                system.turn()  # to warm up
            arenas = list(memory.glob("*/own-*.snap"))
            assert len(arenas) == ranks, arenas
            for _ in range(_WARM_TURNS):
                if _taken(arenas):
                    break
                systems["every step"].turn()  # until the memory for snapshots is ready
            else:
                raise SystemExit("no snapshot was taken before the first turn")
            result: dict[str, Any] = {name: [] for name in systems} | {"cpu": {name: [] for name in systems}}
            result["snapshot_bytes"] = arenas[0].stat().st_size // SLOTS[options.device]
            for turn in range(options.rounds):
                order = list(systems)
                for name in reversed(order) if turn % 2 else order:
                    before = sum(map(cpu_seconds, ranks_of[name]))
                    result[name].append(systems[name].turn() / (options.steps - 1))
                    used = sum(map(cpu_seconds, ranks_of[name])) - before
                    result["cpu"][name].append(used / options.steps)
            result["snapshots"] = _taken(arenas)
            return result
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            listener.close()


def _taken(arenas: list[Path]) -> int:
    """The newest step in every rank's memory; 0 where there is none."""
    from holdfast.checkpoint.snapshots.arena import Arena

    found = []
    for path in arenas:
        arena = Arena.open(path)
        found.append(max((one.step for one in arena.snapshots()), default=0))
        arena.close()
    return min(found)


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--device", choices=SIZES, default="cpu")
    made.add_argument("--processes", type=int, nargs="+", help="default: 1 2; on GPUs 1")
    made.add_argument("--rounds", type=int, default=8)
    made.add_argument("--steps", type=int, default=4)
    made.add_argument("--zero", type=int, default=1)
    for name in SIZES["cpu"]:
        made.add_argument(f"--{name.replace('_', '-')}", type=int)
    options = made.parse_args()
    for name, size in SIZES[options.device].items():
        if getattr(options, name) is None:
            setattr(options, name, size)
    options.processes = options.processes or ([1, 2] if options.device == "cpu" else [1])
    preload()
    with scratch() as folder:
        print(json.dumps({str(ranks): measure(options, ranks, folder) for ranks in options.processes}), flush=True)


if __name__ == "__main__":
    main()
