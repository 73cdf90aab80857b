"""Group initialisation: seconds, and store operations of the busiest rank, ours against torch's habit.

python benchmarks/group_init.py [--json] [--full | --worlds 4,8] [--repeat 3]

Ranks are forked from a fork server and start together; each joins, makes the mesh (pp, dp, tp) and does one
all-reduce over all ranks and one in each of its groups, so that connections put off are paid for too. Ours: groups
made by their members alone, gloo connects when two ranks first talk; `torch`: every rank takes part in making every
group, all connect with all. `barriers`: TORCH_DIST_INIT_BARRIER=1, as before torch 2.10 or so. Every store is a
process of its own. Needs redis-server and the redis library.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from common import Json, finish, parser, scratch

TIMEOUT = timedelta(seconds=120)
DEADLINE_S = 180.0


@dataclass(frozen=True)
class System:
    store: str
    ours: bool
    barriers: bool = False


SYSTEMS = {
    "holdfast": System("redis", ours=True),
    "holdfast, TCP libuv": System("libuv", ours=True),
    "torch, TCP libuv": System("libuv", ours=False),
    "torch, TCP plain": System("plain", ours=False),
    "torch, TCP libuv, barriers": System("libuv", ours=False, barriers=True),
    "torch, TCP plain, barriers": System("plain", ours=False, barriers=True),
    "torch, Redis": System("redis", ours=False),
}


def shape(world: int) -> tuple[int, int, int]:
    """(pp, dp, tp) of a job of this size."""
    return (2, world // 4, 2)


def rank_main(system: System, address: str, rank: int, world: int, generation: int, counting: bool) -> Json:
    """One rank from nothing to its first collectives."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from holdfast.trainer.mesh.mesh import join
    from holdfast.trainer.mesh.rendezvous import CountingStore, open_store
    from holdfast.trainer.settings.launch import Launch
    from holdfast.trainer.settings.layout import TrainerLayout
    from holdfast.trainer.settings.load import load

    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "TORCH_DIST_INIT_BARRIER": str(int(system.barriers))}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": address, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ["TORCH_GLOO_LAZY_INIT"] = str(int(system.ours))
    launch = Launch(rank, world, rank, generation, "bench", True)
    store: Any = open_store(address if system.store == "redis" else "env", launch, os.environ, TIMEOUT)
    if counting:
        store = CountingStore(store)
    pp, dp, tp = shape(world)
    if system.ours:
        layout = TrainerLayout(pp, dp, tp, chunks=1, local_micro_batches=pp)
        device_mesh = join(load(), launch, layout, torch.device("cpu"), store).device_mesh
    else:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=TIMEOUT)
        device_mesh = init_device_mesh("cpu", (pp, dp, tp), mesh_dim_names=("pp", "dp", "tp"))
    joined = time.monotonic()
    dist.all_reduce(torch.ones(1))
    for axis in ("pp", "dp", "tp"):
        dist.all_reduce(torch.ones(1), group=device_mesh.get_group(axis))
    return {"joined": joined, "talked": time.monotonic(), "operations": store.total if counting else 0}


@contextmanager
def server(kind: str, folder: Path) -> Iterator[str]:
    """A store in a process of its own; its port, or URL for Redis."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if kind == "redis":
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--maxclients", "2000"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder)
        pid = process.pid
    elif (pid := os.fork()) == 0:
        import torch.distributed as dist

        kept = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, use_libuv=kind == "libuv")
        while kept:
            time.sleep(60)
    try:
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0" if kind == "redis" else str(port)
    finally:
        os.kill(pid, signal.SIGKILL)
        if kind == "redis":
            process.wait()
        else:
            os.waitpid(pid, 0)


def measure(system: System, world: int, folder: Path, generation: int, counting: bool) -> Json:
    """Seconds until the last rank has joined, and has talked; operations of the busiest rank."""
    with server(system.store, folder) as address:
        gate_in, gate_out = os.pipe()
        pids = []
        for rank in range(world):
            pid = os.fork()
            if pid == 0:
                _child(system, address, rank, world, generation, counting, folder, (gate_in, gate_out))
            pids.append(pid)
        os.close(gate_in)
        begun = time.monotonic()
        os.close(gate_out)  # all ranks were waiting for this
        ends = _wait(pids)
    if any(ends):
        raise SystemExit(f"{system} at {world} ranks failed: exit codes {ends}")
    results = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    return {
        "joined_s": max(r["joined"] for r in results) - begun,
        "talked_s": max(r["talked"] for r in results) - begun,
        "operations": max(r["operations"] for r in results),
    }


def _child(
    system: System, address: str, rank: int, world: int, generation: int, counting: bool, folder: Path, gate: Any
) -> None:
    code = 1
    try:
        os.close(gate[1])
        os.read(gate[0], 1)
        result = rank_main(system, address, rank, world, generation, counting)
        (folder / f"{rank}.json").write_text(json.dumps(result))
        code = 0
        time.sleep(0.2)  # peers may still be talking to us
    except BaseException as error:
        print(f"rank {rank}: {error}", file=sys.stderr)
    finally:
        os._exit(code)


def _wait(pids: list[int]) -> list[int]:
    end = time.monotonic() + DEADLINE_S
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > end:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[pid] for pid in pids]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--full", action="store_true", help="128 ranks too: minutes")
    options.add_argument("--worlds", default="4,8,32", metavar="N,N", help="numbers of ranks, multiples of 4")
    options.add_argument("--repeat", type=int, default=3, help="timed runs of each system at each size")
    chosen = options.parse_args()
    if shutil.which("redis-server") is None:
        sys.exit("group_init: needs redis-server (Debian: apt-get install redis-server)")
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # hosts without a resolver: a line for each connection
    from holdfast.trainer.preload import preload

    preload()
    worlds = [int(word) for word in chosen.worlds.split(",")] + ([128] if chosen.full else [])
    rows, seconds, joined, operations = [], {}, {}, {}
    generation = 0
    with scratch() as folder:
        for name, system in SYSTEMS.items():
            for world in worlds:
                key, runs = f"{name} @{world}", []
                # Counted in a run of its own, for it costs a Python call each; but at 128 every run is minutes of CPU.
                for number in range(chosen.repeat + 1 if world < 128 else 1):
                    generation += 1
                    runs.append(measure(system, world, folder, generation, counting=number == 0))
                timed = runs[1:] or runs
                joined[key] = median(r["joined_s"] for r in timed)
                seconds[key] = median(r["talked_s"] for r in timed)
                operations[key] = runs[0]["operations"]
                rows.append((name, world, joined[key], seconds[key], operations[key]))
                print(f"{key}: {seconds[key]:.2f} s, {operations[key]} operations", file=sys.stderr, flush=True)
    largest = worlds[-1]
    result: Json = {
        "medians_s": {name: seconds[f"{name} @{largest}"] for name in SYSTEMS},
        "seconds": seconds,
        "joined_s": joined,
        "operations_per_rank": operations,
        "worlds": worlds,
    }
    finish(result, chosen.json, ("system", "ranks", "joined s", "talked s", "operations/rank"), rows)


if __name__ == "__main__":
    main()
