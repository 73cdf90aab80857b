"""What each technique costs and saves: one small model on real text, one global batch, one table.

python benchmarks/techniques.py [--groups replicas pipeline contributions] [--rounds 6] [--steps 5] [--json]

Ranks are processes on this machine's cores, over gloo, one thread each. All systems of a group are started, and take
turns (`turns.py`); a step's time is the median of the turns, and `next to` the median ratio to another system's turn in
the same round. Plain systems are PyTorch alone (`workers/plain_trainer.py`); rows with `torch` are Holdfast's
plan on torch's pipelining runtime. `dp 2` and `dp 4` have one micro-batch a replica, because chunks need that.

`resident`: the most of a rank in its last turn beyond what it had before the model. Bytes by kind are counted in a turn
of their own, which is not timed: on the device, which here is the process' memory too, and in `host`, which on a GPU
would be the host's. With chunks `weights` are the chunks on the device that an arena stands for.
`wire`: of all ranks in a step, from the counters of the benchmark's own network namespace (it needs `unshare`), and
next to it what the trainer's formula says (`holdfast train --traffic`). `loss` is that of the last step.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import Json, finish, parser, scratch
from technique_rows import HEAD, Figures, fullest, payload, rows
from turns import Gate, System, order_of, started

sys.path.insert(0, str(Path(__file__).parent / "workers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests/trainer/support"))  # torch's runtime is the tests' oracle

INSIDE = "HOLDFAST_BENCHMARK_INSIDE"
GAUGE = "gauge"
KFAC = {
    "optim.name": "dp-kfac", "parallel.zero": 0, "optim.clip_norm": 0, "optim.kl_clip": 0.01, "optim.lr": 0.03,
    "optim.kfac_others": "adamw", "optim.kfac_others_lr": 1e-3,
}  # fmt: skip
HOST = {"parallel.zero": 0, "optim.state": "host", "optim.bucket": 200_000}


@dataclass(frozen=True)
class Case:
    """One system. `settings`: of Holdfast's trainer; None is plain PyTorch, wrapped as `wrapper` says."""

    settings: Mapping[str, object] | None
    peer: str = ""
    """Next to which system of its group it is put."""
    wrapper: str = ""
    on_torch: bool = False
    """Torch's pipelining runtime executes the plan."""


@dataclass(frozen=True)
class Group:
    """Systems that take turns. `micro_batch` in samples."""

    text: str
    ranks: int
    micro_batch: int
    cases: Mapping[str, Case]
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert all(not case.peer or case.peer in self.cases for case in self.cases.values()), self.text


DDP, FSDP = Case(None, wrapper="ddp"), Case(None, "ddp", wrapper="fsdp2")
SAMPLES = 16


def replicas() -> Group:
    cases = {
        "ddp": DDP,
        "fsdp2": FSDP,
        "zero 0": Case({"parallel.zero": 0}, "ddp"),
        "zero 1": Case({"parallel.zero": 1}, "fsdp2"),
        "zero 3": Case({"parallel.zero": 3}, "fsdp2"),
        "chunks": Case({"parallel.zero": 3, "memory.policy": "chunks"}, "fsdp2"),
        "chunks, limited": Case({"parallel.zero": 3, "memory.policy": "chunks", "memory.device_bytes": 0}, "fsdp2"),
        "host states": Case(HOST, "ddp"),
        "host states, no norm": Case({**HOST, "optim.clip_norm": 0}, "host states"),
        # of 2 MB: each takes a turn of the network, and pieces of a bucket would be 33
        "host states, in pieces": Case({**HOST, "optim.clip_norm": 0, "optim.reduce_pieces": 5}, "host states"),
        "lamb": Case({"parallel.zero": 1, "optim.name": "lamb", "optim.lr": 1e-2}, "zero 1"),
        "dp-kfac": Case(KFAC, "zero 0"),
        "dp-kfac, eigen": Case({**KFAC, "optim.kfac_form": "eigen"}, "zero 0"),
    }
    return Group("dp 2", 2, SAMPLES // 2, cases, {"parallel.dp": 2})


def contributions() -> Group:
    cases = {
        "ddp": DDP,
        "zero 0": Case({"parallel.zero": 0}, "ddp"),
        "partial backward, k 4": Case({"parallel.zero": 0, "parallel.partial_backward": 4}, "zero 0"),
    }
    return Group("dp 4", 4, SAMPLES // 4, cases, {"parallel.dp": 4})


def pipeline() -> Group:
    cases = {"ddp, dp 2": DDP, "fsdp2, dp 2": Case(None, "ddp, dp 2", wrapper="fsdp2")}
    for schedule in ("gpipe", "1f1b", "interleaved", "zbv"):
        settings = {"parallel.schedule": schedule}
        cases[f"{schedule}, torch"] = Case(settings, "ddp, dp 2", on_torch=True)
        cases[schedule] = Case(settings, f"{schedule}, torch")
    offload = {"parallel.schedule": "gpipe", "train.activations": "host", "train.activation_bytes": 0}
    kfac = {"parallel.schedule": "1f1b", **KFAC}
    cases |= {
        "gpipe, activations on the host": Case(offload, "gpipe"),
        "axonn": Case({"parallel.schedule": "axonn"}, "1f1b"),
        "1f1b, dp-kfac": Case(kfac, "1f1b"),
        "1f1b, dp-kfac in bubbles": Case({**kfac, "optim.kfac_fill": "true"}, "1f1b, dp-kfac"),
    }
    return Group("pp 2", 2, 2, cases, {"parallel.pp": 2, "parallel.dp": 1, "parallel.zero": 0})


GROUPS: dict[str, Callable[[], Group]] = {
    "replicas": replicas,
    "pipeline": pipeline,
    "contributions": contributions,
}


def settings_of(options: argparse.Namespace, group: Group, case: Case, folder: Path) -> dict[str, object]:
    """Of Holdfast's trainer, for the model that the plain script has."""
    assert case.settings is not None
    made = {
        "model.layers": options.layers, "model.d_model": options.width, "model.heads": options.heads,
        "model.ffn_width": options.inner, "model.block": "serial", "model.mlp": "swiglu",
        "data.path": folder / "text", "data.seq_len": options.length, "data.cache_dir": folder,
        "train.micro_batches": SAMPLES // group.micro_batch, "train.micro_batch_size": group.micro_batch,
        "train.steps": 1_000_000, "train.log_every": 0, "optim.lr": 1e-3, "parallel.timeout_s": 3600,
        **group.settings, **case.settings,
    }  # fmt: skip
    if "memory.device_bytes" in made:
        made["memory.device_bytes"] = round(options.device_mb * 1e6)
    if "train.activation_bytes" in made:
        made["train.activation_bytes"] = round(options.activation_mb * 1e6)
    return made


def ours(options: argparse.Namespace, group: Group, case: Case, folder: Path, gate: Gate) -> None:
    """One rank of Holdfast's trainer."""
    if case.on_torch:
        import torch_runtime

        torch_runtime.install()
    from holdfast.trainer.__main__ import parse
    from holdfast.trainer.optim.traffic import traffic
    from holdfast.trainer.run import loop
    from holdfast.trainer.settings.launch import from_environment

    unhindered = loop.Trainer.step

    def step(self: loop.Trainer, number: int) -> Any:
        gate(number)
        with gauging(self, gate) if gate.order == GAUGE and not case.on_torch else nullcontext():
            totals = unhindered(self, number)
        if "formula" not in gate.notes:
            vocab = 256  # bytes
            gate.notes["formula"] = traffic(self.config, self.mesh.layout, self.plan, vocab).total
        gate.notes["loss"] = totals.loss
        return totals

    loop.Trainer.step = step  # type: ignore[method-assign]
    settings = settings_of(options, group, case, folder)
    argv = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    loop.run(parse(argv), from_environment(os.environ))


@contextmanager
def gauging(trainer: Any, gate: Gate) -> Iterator[None]:
    """The gate's notes get what the rank holds of each kind in the step, on the device and in the host's memory."""
    from holdfast.trainer.memory.measured import Gauge, num_bytes, storage

    states = trainer.optimizer.states
    if trainer.chunks is None:
        with Gauge(trainer.executor, trainer.stages, trainer.optimizer, trainer.mesh.device) as gauge:
            yield
        kinds = gauge.result().kinds()
        host = 0 if trainer.executor.offload is None else trainer.executor.offload.moved.out
    else:
        yield
        device = trainer.chunks.device
        kinds = dict(device.arena.peak_by)
        kinds["weights"] = kinds.pop("chunks", 0)
        host = sum(chunk.nbytes for chunk in device.host)
    here = {storage(tensor).data_ptr() for tensor in states.on_device()}
    kept = [x for index in range(len(trainer.slices)) for x in states.state(index).values()]
    if trainer.chunks is not None:
        kept += list(states.masters.values())  # chunks have a copy of their own
    host += num_bytes(x for x in kept if storage(x).data_ptr() not in here)
    gate.notes["kinds"] = fullest([{**kinds, "host": host}, gate.notes.get("kinds", {})])


def plain(options: argparse.Namespace, group: Group, case: Case, folder: Path, gate: Gate) -> None:
    """One rank of the plain script."""
    import plain_trainer
    from held import Held

    held: list[Held] = []

    def on_step(number: int) -> None:
        if gate.order == GAUGE:
            gate.notes["kinds"] = held[0].kinds()
        gate(number)
        if gate.order == GAUGE and number % gate.steps == 0:
            held[0].__enter__()

    sizes = ("layers", "width", "heads", "inner", "length")
    argv = [word for name in sizes for word in (f"--{name}", str(getattr(options, name)))]
    argv += ["--samples", str(SAMPLES), "--micro-batch", str(group.micro_batch), "--system", case.wrapper]
    argv += ["--steps", "1000000", "--text", str(folder / "text" / "all.txt")]
    plain_trainer.train(
        plain_trainer.parsed(argv),
        on_step,
        lambda model, optimizer: held.append(Held(model, optimizer)),
        lambda loss: gate.notes.update(loss=loss),
    )


def measure(options: argparse.Namespace, group: Group, folder: Path) -> dict[str, Figures]:
    """All systems of a group, in one run."""

    def worker(case: Case, gate: Gate) -> None:
        (plain if case.settings is None else ours)(options, group, case, folder, gate)

    workers = {
        name: functools.partial(worker, case)
        for name, case in group.cases.items()
        if not options.only or name in options.only
    }
    steps: dict[str, list[float]] = {name: [] for name in workers}
    sent: dict[str, list[float]] = {name: [] for name in workers}
    resident: dict[str, int] = {}
    with started(workers, group.ranks, options.steps, folder) as systems:
        for turn in range(options.rounds):
            for name in order_of(list(systems), turn):
                before = payload(Path("/proc/net/dev").read_text())
                steps[name].append(systems[name].turn() / (options.steps - 1))
                sent[name].append((payload(Path("/proc/net/dev").read_text()) - before) / options.steps)
        cpu = {name: [s / (options.steps - 1) for s in system.used[1:]] for name, system in systems.items()}
        for name, system in systems.items():
            resident[name] = max(answer["resident"] for answer in system.answers)
            system.turn(GAUGE)
        return {
            name: figures(system, steps[name], cpu[name], resident[name], sent[name])
            for name, system in systems.items()
        }


def figures(system: System, steps: list[float], cpu: list[float], resident: int, sent: list[float]) -> Figures:
    """Of what all ranks of a system answered."""
    answers = system.answers
    kinds = [answer["kinds"] for answer in answers if "kinds" in answer]
    formula = next((answer["formula"] for answer in answers if "formula" in answer), None)
    # TCP sends a packet twice now and then.
    wire = min(sent) if INSIDE in os.environ else None
    loss = sum(answer["loss"] for answer in answers) / len(answers)
    return Figures(steps, cpu, resident, fullest(kinds) if kinds else None, wire, formula, loss)


def check(options: argparse.Namespace, groups: Iterable[Group]) -> None:
    """Settings that the trainer refuses end the benchmark with exit code 2, before a process starts."""
    from holdfast.trainer.__main__ import parse
    from holdfast.trainer.settings.errors import ConfigError
    from holdfast.trainer.settings.layout import plan

    for group in groups:
        for name, case in group.cases.items():
            if case.settings is None or (options.only and name not in options.only):
                continue
            settings = settings_of(options, group, case, Path("/"))
            try:
                plan(
                    parse([w for key, value in settings.items() for w in ("--set", f"{key}={value}")]), group.ranks, 256
                )
            except ConfigError as error:
                print(f"techniques.py: {name}: {error}", file=sys.stderr)
                raise SystemExit(2) from None


def enter() -> None:
    """Go on in a network namespace of our own, where nothing else sends. Without it nothing is counted."""
    if INSIDE in os.environ or not all(map(shutil.which, ("unshare", "ip"))):
        return
    alone = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        return
    os.environ[INSIDE] = "1"
    os.execvp(alone[0], [*alone, sys.executable, *sys.argv])


def write_text(folder: Path) -> None:
    """Real text for both kinds of systems: the standard library's sources of one package."""
    folder.mkdir()
    sources = sorted((Path(os.__file__).parent / "asyncio").glob("*.py"))
    (folder / "all.txt").write_bytes(b"".join(source.read_bytes() for source in sources))


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    made.add_argument("--only", nargs="+", default=[], help="of all groups, systems of these names alone")
    made.add_argument("--rounds", type=int, default=6, help="turns of each system")
    made.add_argument("--steps", type=int, default=5, help="in a turn")
    sizes = {"layers": 4, "width": 256, "heads": 8, "inner": 704, "length": 32}
    for name, size in sizes.items():
        made.add_argument(f"--{name}", type=int, default=size)
    made.add_argument("--device-mb", type=float, default=36.0, help="of the device, for limited chunks")
    made.add_argument("--activation-mb", type=float, default=8.0, help="on the device, where the others are elsewhere")
    options = made.parse_args()
    groups = [GROUPS[name]() for name in options.groups]
    if options.steps < 2 or options.rounds < 1:
        made.error("--steps must be 2 or more, and --rounds 1 or more")
    known = {name for group in groups for name in group.cases}
    if unknown := sorted(set(options.only) - known):
        made.error(f"--only {unknown[0]}: no such system; there are {', '.join(sorted(known))}")
    enter()
    import torch_runtime  # noqa: F401  # as the rest, before ranks are forked: it is no rank's memory

    from holdfast.trainer.preload import preload

    preload()
    check(options, groups)
    load = os.getloadavg()[0]
    table: list[list[object]] = []
    found: Json = {}
    with scratch() as folder:
        write_text(folder / "text")
        for group in groups:
            measured = measure(options, group, folder)
            found[group.text] = {name: vars_of(one) for name, one in measured.items()}
            peers = {name: case.peer for name, case in group.cases.items()}
            table += [[f"{group.text}: {name}", *rest] for name, *rest in rows(measured, peers)]
    finish({"groups": found, "load_before": load}, options.json, HEAD, table)
    if not options.json:
        print(f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after")


def vars_of(one: Figures) -> Json:
    """As JSON has it."""
    return {name: getattr(one, name) for name in Figures.__slots__}


if __name__ == "__main__":
    main()
