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
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

from common import Json, finish, parser, quantile, scratch
from turns import Gate, order_of, started

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


def measure(options: argparse.Namespace, ranks: int, folder: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Of each turn, by system: tokens per second, and milliseconds of processors that a step took over all ranks."""

    def worker(name: str, gate: Gate) -> None:
        os.environ.pop(ENV_PATH, None)
        if name in OURS and OURS[name][1]:
            os.environ[ENV_PATH] = str(folder / f"probe-{ranks}-{os.environ['RANK']}")
        if name == TORCH_RUNTIME:
            import torch_runtime

            torch_runtime.install()
            ours(options, ranks, OURS["holdfast"][0], folder, gate)
        elif name in OURS:
            ours(options, ranks, OURS[name][0], folder, gate)
        else:
            plain(options, name, gate)

    workers = {name: functools.partial(worker, name) for name in options.systems}
    speeds: dict[str, list[float]] = {name: [] for name in workers}
    tokens = options.samples * options.length * (options.steps - 1)
    with started(workers, ranks, options.steps, folder) as systems:
        for turn in range(options.rounds):
            for name in order_of(list(systems), turn):
                speeds[name].append(tokens / systems[name].turn())
        used = {name: [s * 1000 / (options.steps - 1) for s in system.used[1:]] for name, system in systems.items()}
    return {name: (values, used[name]) for name, values in speeds.items()}


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
