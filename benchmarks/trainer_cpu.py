"""Tokens per second of Holdfast's trainer against a plain PyTorch script of the same model, on this machine's cores.

python benchmarks/trainer_cpu.py [--processes 1 2 8] [--starts 1] [--rounds 8] [--steps 6] [--json]

All systems of one size run at the same time, and all but one wait at a gate: they take turns, so many steps a turn,
in an order that alternates from round to round. Each has as many ranks, one thread a rank, the same sizes, precision,
optimizer, tokens a step and micro-batches. Ranks are forked from one fork server. `ddp` without another rank is the
bare model. `holdfast` keeps all state on every replica, as `ddp` does; `watched` writes the probe's shared memory too.
With `zero 1` replicas share out the optimizer's state, with `zero 3` all, as `fsdp2` does, layer by layer. The `fsdp2`
script reduces gradients once a step and keeps them whole until then, as `zero 3 once`; `zero 3` reduces them after each
micro-batch and never holds them whole. `torch runtime` is `holdfast` whose plan torch's pipelining runtime executes,
as `holdfast` did before it had an executor: ask for it by name, and for a pipeline with `--set parallel.pp=4 --set
parallel.dp=1 --set parallel.schedule=zbv`.
The first step of a turn, in which processes wake up, does not count; a figure is the median of the turns. Where its
memory comes to lie makes a process up to a tenth faster or slower for its life, so `--starts` begins anew that often.
CPU time is of all ranks together: on a busy host it is the better figure.
"""

import argparse
import functools
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from common import Json, finish, parser, quantile, scratch

from holdfast.agent.probe_file.layout import ENV_PATH
from holdfast.trainer.preload import preload

sys.path.insert(0, str(Path(__file__).parent / "workers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests/trainer/support"))  # torch's runtime is the tests' oracle

# By system: what replicas share out, and whether the probe is attached.
OURS: dict[str, tuple[dict[str, object], bool]] = {
    "holdfast": ({"parallel.zero": 0}, False),
    "holdfast watched": ({"parallel.zero": 0}, True),
    "holdfast zero 1": ({"parallel.zero": 1}, False),
    "holdfast zero 3": ({"parallel.zero": 3}, False),
    "holdfast zero 3 once": ({"parallel.zero": 3, "parallel.zero_reduce": "last"}, False),
}
# Plain systems, and ours that keep as much on each rank.
PLAIN = {
    "ddp": ("holdfast", "holdfast watched"),
    "fsdp2": ("holdfast zero 1", "holdfast zero 3", "holdfast zero 3 once"),
}
TORCH_RUNTIME = "torch runtime"
SYSTEMS = (*OURS, *PLAIN)
DEADLINE_S = 300.0


class Gate:
    """The side of a rank: waits at the start of each turn, and says how long the steps of the last one took."""

    def __init__(self, where: str, system: str, steps: int) -> None:
        self.line = socket.socket(socket.AF_UNIX)
        self.line.connect(where)
        self.orders = self.line.makefile("r")
        self.steps, self.times, self.used = steps, list[float](), 0.0
        self.report({"system": system})

    def report(self, what: Json) -> None:
        self.line.sendall(json.dumps(what).encode() + b"\n")

    def __call__(self, step: int) -> None:
        if step % self.steps == 0:
            if self.times:
                self.report({"seconds": time.perf_counter() - self.times[1], "used": time.process_time() - self.used})
            if not self.orders.readline():
                os._exit(0)
            self.times.clear()
        if len(self.times) == 1:
            self.used = time.process_time()
        self.times.append(time.perf_counter())


class System:
    """The side of the benchmark: all ranks of one system."""

    def __init__(self) -> None:
        self.lines: list[tuple[socket.socket, Any]] = []
        self.used: list[float] = []
        """Of each turn, seconds of the processors over all ranks."""

    def turn(self) -> float:
        """Seconds of the steps after the first, as the slowest rank saw it."""
        for line, _ in self.lines:
            line.sendall(b"go\n")
        answered = [json.loads(answers.readline()) for _, answers in self.lines]
        self.used.append(sum(float(answer["used"]) for answer in answered))
        return max(float(answer["seconds"]) for answer in answered)


def ours(options: argparse.Namespace, ranks: int, sharing: Json, folder: Path, gate: Gate) -> None:
    from holdfast.trainer.__main__ import parse
    from holdfast.trainer.run import loop
    from holdfast.trainer.settings.launch import from_environment

    unhindered = loop.Trainer.step

    def step(self: loop.Trainer, number: int) -> Any:
        gate(number)
        return unhindered(self, number)

    loop.Trainer.step = step  # type: ignore[method-assign]
    settings = {
        "model.layers": options.layers, "model.d_model": options.width, "model.heads": options.heads,
        "model.ffn_width": options.inner, "model.block": "serial", "model.mlp": "swiglu",
        "data.path": Path(os.__file__).parent / "json", "data.suffixes": '[".py"]',
        "data.seq_len": options.length, "data.cache_dir": folder,
        "train.micro_batches": options.samples // options.micro_batch, "train.micro_batch_size": options.micro_batch,
        "train.steps": 1_000_000, "train.log_every": 0, "optim.lr": 1e-3, "parallel.dp": ranks,
        "parallel.timeout_s": 3600, **sharing,
    }  # fmt: skip
    settings |= dict(text.split("=", 1) for text in options.set)
    argv = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    loop.run(parse(argv), from_environment(os.environ))


def plain(options: argparse.Namespace, system: str, gate: Gate) -> None:
    import plain_trainer

    sizes = ("layers", "width", "heads", "inner", "length", "samples", "micro_batch")
    argv = [word for name in sizes for word in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
    plain_trainer.train(plain_trainer.parsed([*argv, "--system", system, "--steps", "1000000"]), gate)


def forked(work: Callable[[], None]) -> int:
    """The child runs `work` and ends."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def store() -> tuple[int, int]:
    """A rendezvous store in a process of its own, and its port: the fork server must have no threads."""
    reader, writer = os.pipe()

    def serve() -> None:
        import torch.distributed as dist

        held = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, str(held.port).encode())
        os.close(writer)
        while True:
            time.sleep(60)

    pid = forked(serve)
    os.close(writer)
    port = int(os.read(reader, 16))
    os.close(reader)
    return pid, port


def measure(options: argparse.Namespace, ranks: int, folder: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Of each turn, by system: tokens per second, and milliseconds of processors that a step took over all ranks."""
    listener = socket.socket(socket.AF_UNIX)
    where = str(folder / f"gate{ranks}")
    listener.bind(where)
    listener.listen(64)
    listener.settimeout(DEADLINE_S)
    systems = {name: System() for name in options.systems}
    pids: list[int] = []

    def worker(name: str, rank: int, port: int) -> None:
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        os.environ.pop(ENV_PATH, None)
        if name in OURS and OURS[name][1]:
            os.environ[ENV_PATH] = str(folder / f"probe-{ranks}-{rank}")
        gate = Gate(where, name, options.steps)
        if name == TORCH_RUNTIME:
            import torch_runtime

            torch_runtime.install()
            ours(options, ranks, OURS["holdfast"][0], folder, gate)
        elif name in OURS:
            ours(options, ranks, OURS[name][0], folder, gate)
        else:
            plain(options, name, gate)

    try:
        for name in systems:
            pid, port = store()
            pids.append(pid)
            for rank in range(ranks):
                pids.append(forked(functools.partial(worker, name, rank, port)))

        for _ in range(ranks * len(systems)):
            line, _ = listener.accept()
            line.settimeout(DEADLINE_S)
            answers = line.makefile("r")
            systems[json.loads(answers.readline())["system"]].lines.append((line, answers))
        for system in systems.values():
            system.turn()  # to warm up
        speeds: dict[str, list[float]] = {name: [] for name in systems}
        tokens = options.samples * options.length * (options.steps - 1)
        for turn in range(options.rounds):
            order = list(systems)
            shift = turn // 2 % len(order)
            order = order[shift:] + order[:shift]
            for name in reversed(order) if turn % 2 else order:
                speeds[name].append(tokens / systems[name].turn())
        used = {name: [s * 1000 / (options.steps - 1) for s in system.used[1:]] for name, system in systems.items()}
        return {name: (values, used[name]) for name, values in speeds.items()}
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        listener.close()
        os.unlink(where)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--processes", type=int, nargs="+", default=[1, 2, 8])
    made.add_argument("--systems", nargs="+", choices=(*SYSTEMS, TORCH_RUNTIME), default=list(SYSTEMS))
    made.add_argument("--starts", type=int, default=1, help="how often all processes are started")
    made.add_argument("--rounds", type=int, default=8, help="turns of each system from one start to the next")
    made.add_argument("--steps", type=int, default=6, help="in a turn")
    sizes = {"layers": 4, "width": 256, "heads": 8, "inner": 704, "length": 128, "samples": 16, "micro-batch": 2}
    for name, size in sizes.items():
        made.add_argument(f"--{name}", type=int, default=size)
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting for Holdfast only")
    options = made.parse_args()
    if options.steps < 2 or any(options.samples % (n * options.micro_batch) for n in options.processes):
        made.error("--steps must be 2 or more, and --samples a multiple of processes x micro-batch")
    preload()
    rows: list[list[object]] = []
    medians: dict[str, dict[str, float]] = {name: {} for name in options.systems}
    every: Json = {}
    with scratch() as folder:
        for ranks in options.processes:
            speeds: dict[str, list[float]] = {name: [] for name in options.systems}
            used: dict[str, list[float]] = {name: [] for name in options.systems}
            for _ in range(options.starts):
                for name, (values, taken) in measure(options, ranks, folder).items():
                    speeds[name] += values
                    used[name] += taken
            every[str(ranks)] = speeds
            for name, values in speeds.items():
                medians[name][str(ranks)] = median(values)
            for name, values in speeds.items():
                spread = f"{quantile(values, 0.25):.0f} to {quantile(values, 0.75):.0f}"
                peers = [
                    p for p, alike in {TORCH_RUNTIME: ("holdfast",), **PLAIN}.items() if name in alike and p in speeds
                ]
                ratios = [a / b for peer in peers for a, b in zip(values, speeds[peer], strict=True)]
                rows.append([f"{ranks} x {name}", f"{median(values):.0f}", spread, f"{median(used[name]):.0f}",
                             f"{median(ratios):.3f} {peers[0]}" if ratios else ""])  # fmt: skip
    result = {"medians_tokens_per_s": medians, "tokens_per_s": every, "set": options.set}
    finish(result, options.json, ["processes x system", "tokens/s", "quartiles", "CPU ms a step", "next to"], rows)


if __name__ == "__main__":
    main()
