"""Predicted against measured step times of twelve (tp, pp, dp) layouts, executed on this machine's cores.

python benchmarks/cost_model.py [--steps 6] [--rounds 2] [--repeats 10] [--processor-time] [--json]

A small model is profiled first: its layers on one core, and collectives among 2, 4 and 8 ranks. The cluster says how
many cores the ranks share. Then each layout is really trained, in an order that is turned around each round; the least
step of all rounds counts, as other load only adds. Targets (C10): Kendall's tau of 0.9 or more, errors of 10 % or less.
Load is printed beside, since both sides are measured on a machine that may have other work.

With `--processor-time` ranks need no core each, and the machine may be busy. Layouts are as really trained, and each
rank records the processor time of its thread between the messages and collectives that it begins or waits for. They are
then replayed as on two nodes of four devices with a core each, where messages take what the links allow
(replayed.py). All run on one and the same core: threads that share one slow each other. Each runs until it waits, where
the system allows that (SCHED_RR, 100 ms): ranks that are put aside every few milliseconds find the core's cache full of
each other's data, which took four of them 12 % more processor time. A core's speed changes with
what other machines on its host do, within seconds and by a third: so a process of its own measures a profile before and
after each layout, and a layout is predicted with these two; its error is the median of its rounds'. Both sides take
medians of repetitions. Of the cluster's links both know alpha and beta alone.
"""

import functools
import itertools
import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median

from common import Json, finish, parser, scratch
from replayed import parsed, replay, usual

from holdfast.cli.main import main as holdfast
from holdfast.planner.cluster.cluster import Cluster, Hop, Level, Node
from holdfast.planner.cluster.gpus import Gpu
from holdfast.planner.cost.layers import Precision
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.measured import read
from holdfast.planner.cost.predict import CostModel
from holdfast.trainer.__main__ import main as trainer
from holdfast.trainer.preload import preload
from holdfast.trainer.settings.config import ModelConfig
from holdfast.trainer.settings.shape import shape_of

LAYOUTS = ((1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1), (4, 1, 1), (1, 4, 1), (2, 2, 2),
           (1, 4, 2), (1, 1, 8))  # fmt: skip
"""(tp, pp, dp)."""
SIZES = {"model.layers": 8, "model.d_model": 256, "model.heads": 8, "data.seq_len": 128, "train.micro_batches": 8,
         "train.micro_batch_size": 2, "parallel.device": "cpu"}  # fmt: skip
VOCAB = 256
DEADLINE_S = 600.0
PER_NODE, RANKS = 4, 8
WARM = 1
"""Steps that are left out where processor time is recorded: memory is new then."""
LINKS = {Level.NODE: Hop(2e-4, 1 / 100e6), Level.SWITCH: Hop(3e-4, 1 / 50e6)}
"""Where processor time counts. A layer's activations, 256 KiB, take 2.8 ms in a node and 5.7 ms between nodes: as much
as a part of its forward on a core, so links matter as they do beside GPUs."""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=6)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--repeats", type=int, default=10)
    options.add_argument("--processor-time", action="store_true", help="of each rank, and links of two nodes")
    asked = options.parse_args()
    preload()
    if asked.processor_time:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    begun = os.getloadavg()[0]
    with scratch() as folder:
        before = _predictions(folder, asked.repeats, asked.processor_time)
        predicted: dict[tuple[int, int, int], list[float]] = {layout: [] for layout in LAYOUTS}
        measured: dict[tuple[int, int, int], list[float]] = {layout: [] for layout in LAYOUTS}
        for turn in range(asked.rounds):
            for layout in LAYOUTS if turn % 2 == 0 else reversed(LAYOUTS):
                measured[layout].append(_executed(folder, layout, asked.steps, asked.processor_time))
                after = _predictions(folder, asked.repeats, True) if asked.processor_time else before
                predicted[layout].append((before[layout] + after[layout]) / 2)
                before = after
    usual = median if asked.processor_time else min
    rows = [
        {"tp": tp, "pp": pp, "dp": dp, "predicted_s": median(expected), "measured_s": usual(took), "error": error}
        for (tp, pp, dp) in LAYOUTS
        for expected, took in [(predicted[tp, pp, dp], measured[tp, pp, dp])]
        for error in [_error(expected, took) if asked.processor_time else median(expected) / min(took) - 1]
    ]  # fmt: skip
    tau = kendall([row["predicted_s"] for row in rows], [row["measured_s"] for row in rows])
    found: Json = {"layouts": rows, "tau": tau, "worst_error": max(abs(row["error"]) for row in rows),
                   "load": [begun, os.getloadavg()[0]], "cores": len(os.sched_getaffinity(0))}  # fmt: skip
    head = ("tp", "pp", "dp", "predicted, s", "measured, s", "error")
    cells = [
        [*(str(row[key]) for key in ("tp", "pp", "dp")), *(f"{row[key]:.3f}" for key in ("predicted_s", "measured_s")),
         f"{row['error']:+.1%}"]
        for row in rows
    ]  # fmt: skip
    finish(found, asked.json, head, cells)
    if not asked.json:
        print(f"tau {tau:.2f}, worst error {found['worst_error']:.1%}, load {begun:.1f} to {found['load'][1]:.1f}")


def _error(predicted: list[float], measured: list[float]) -> float:
    """The median of the rounds' own errors: a round's profiles were measured beside it, with the core as fast."""
    return median(expected / took for expected, took in zip(predicted, measured, strict=True)) - 1


def kendall(one: list[float], other: list[float]) -> float:
    """Kendall's tau: pairs in the same order, less those in another, over all."""
    signs = [
        ((a > b) - (a < b)) * ((c > d) - (c < d))
        for (a, c), (b, d) in itertools.combinations(zip(one, other, strict=True), 2)
    ]
    return sum(signs) / len(signs)


def _two_nodes(world: int) -> Cluster:
    """Each rank has a core."""
    nodes = tuple(Node(f"n{i}", min(PER_NODE, world)) for i in range(-(-world // PER_NODE)))
    return Cluster(Gpu("cpu", 1e11, 1e10, 1e10), nodes, LINKS, cores=RANKS)


def _predictions(folder: Path, repeats: int, processor_time: bool) -> dict[tuple[int, int, int], float]:
    """By layout, with a profile that is measured now, by a process that is forked as ranks are."""
    profile = folder / "profile.json"
    words = ["profile", "-o", str(profile), "--tps", "1,2,4", "--repeats", str(repeats)]
    words += [] if processor_time else ["--ranks", str(RANKS)]
    process = multiprocessing.get_context("fork").Process(target=_silently, args=(holdfast, [*words, *_set(SIZES)]))
    process.start()
    process.join(DEADLINE_S)
    if process.exitcode != 0:
        process.kill()
        raise RuntimeError(f"holdfast profile ended with {process.exitcode}")
    return {layout: _predicted(profile.read_text(), processor_time, *layout) for layout in LAYOUTS}


def _silently(do: Callable[[list[str]], int], words: list[str]) -> None:
    with open(os.devnull, "w") as nowhere:
        sys.stdout = nowhere
        sys.exit(do(words))


def _predicted(text: str, processor_time: bool, tp: int, pp: int, dp: int) -> float:
    profile = read(text)
    cores, world = len(os.sched_getaffinity(0)), tp * pp * dp
    gpu = Gpu("cpu", 1e11, 1e10, 1e10)
    here = Cluster(gpu, (Node("here", world),), {Level.NODE: Hop(1e-4, 1e-9)}, cores=cores)
    cluster = _two_nodes(world) if processor_time else here
    model = ModelConfig(layers=SIZES["model.layers"], d_model=SIZES["model.d_model"], heads=SIZES["model.heads"])
    layout = Layout(pp, dp, tp, micro_batches=SIZES["train.micro_batches"],
                    micro_batch_size=SIZES["train.micro_batch_size"], zero=1)  # fmt: skip
    cost = CostModel(cluster, Precision.of("float32"), profile, overlap=False)
    return cost.predict(shape_of(model, VOCAB, SIZES["data.seq_len"]), layout).step_s


def _executed(folder: Path, layout: tuple[int, int, int], steps: int, processor_time: bool) -> float:
    """Seconds of the least step but the first, by the trainer's own report, or as it is replayed. Ranks are forked."""
    tp, pp, dp = layout
    world, path = tp * pp * dp, folder / f"{tp}-{pp}-{dp}-{time.monotonic_ns()}.jsonl"
    records = [path.with_suffix(f".{rank}.json") if processor_time else None for rank in range(world)]
    settings = SIZES | {"parallel.tp": tp, "parallel.pp": pp, "parallel.dp": dp, "parallel.zero": 1,
                        "train.metrics_path": path, "train.steps": steps}  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=_rank, args=(rank, world, port, _set(settings), records[rank])) for rank in range(world)
    ]
    for one in ranks:
        one.start()
    deadline = time.monotonic() + DEADLINE_S
    try:
        for one in ranks:
            one.join(max(0.0, deadline - time.monotonic()))
            if one.exitcode != 0:
                raise RuntimeError(f"a rank of tp={tp} pp={pp} dp={dp} ended with {one.exitcode}")
    finally:
        for one in ranks:
            if one.is_alive():
                one.kill()
                one.join()
    if processor_time:
        return _replayed([one for one in records if one is not None])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return min(float(line["seconds"]) for line in lines[1:])


def _replayed(records: list[Path]) -> float:
    ranks = [usual([parsed(step) for step in json.loads(one.read_text())[WARM:]]) for one in records]
    links = _two_nodes(len(ranks))
    known = {(a, b): links.link(a, b) for a, b in itertools.permutations(range(len(ranks)), 2)}
    return max(replay(ranks, lambda a, b: (known[a, b].alpha, known[a, b].beta), PER_NODE))


def _rank(rank: int, world: int, port: int, words: list[str], record: Path | None) -> None:
    names = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1"})
    _silently(trainer if record is None else functools.partial(_recorded, record), words)


def _recorded(record: Path, words: list[str]) -> int:
    import torch
    from recorded import Recorder  # it imports torch too

    torch.set_num_threads(1)  # as ranks do; one that is alone takes all cores
    recorder = Recorder()
    recorder.install()
    code = trainer(words)
    recorder.write(record)
    return code


def _set(settings: dict[str, object]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


if __name__ == "__main__":
    main()
