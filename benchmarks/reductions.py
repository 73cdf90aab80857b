"""What a step waits for its replicas, where they could be done while it computes: gatherings and sums of gradients.

python benchmarks/reductions.py [--cases "zero 1" "bfs zero 3 live 2"] [--chunks 4] [--ms 400] [--steps 4] [--json]

Two replicas of two pipeline ranks with so many stages each. Computation sleeps: a stage takes 1.5 times as long for a
backward as its collective. Collectives are real, over gloo, and arrive late, one after another, as over a link on which
those of a rank's stages take `--ms` together. Reading data takes 1.5 times as long as a stage's gathering. Then no more
need be exposed than 1/V of the sums, those of the last stage, and none of the first gathering (MegaScale, 3.2). Waiting
is rank 0's; `exposed` is its step less that of the same job over a link that takes no time.

`host` and `host pieces` update states in host memory, by buckets that take together as long as the link: after all
sums, or with `optim.reduce_pieces` each as soon as its piece has come (AxoNN, IPDPS 2022).

Chimera has four ranks and micro-batches in one pair of pipes, or with dp 2 two ranks. Of a rank's two sums, `end`
exposes both, `eager` and `eager-opt` the one of the stage that ends last (Li and Hoefler, SC 2021). Two ranks have no
bubble, so there `eager-opt` is `end`.
"""

import argparse
import functools
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from common import Json, finish, parser, scratch
from turns import forked, store

from holdfast.trainer.preload import preload

RANKS, REPLICAS, MICRO_BATCHES = 4, 2, 4
HOST = [
    "parallel.zero=0", "parallel.schedule=interleaved", "optim.state=host", "optim.clip_norm=0", "optim.bucket=100000",
]  # fmt: skip
CASES: dict[str, list[str]] = {
    "zero 0": ["parallel.zero=0", "parallel.schedule=interleaved"],
    "zero 1": ["parallel.zero=1", "parallel.schedule=interleaved"],
    "zero 2": ["parallel.zero=2", "parallel.schedule=interleaved"],
    "bfs zero 1": ["parallel.zero=1", "parallel.schedule=bfs"],
    "bfs zero 3": ["parallel.zero=3", "parallel.zero_unit=stage", "parallel.schedule=bfs"],
    "bfs zero 3 live 2": [
        "parallel.zero=3", "parallel.zero_unit=stage", "parallel.schedule=bfs", "parallel.zero_live=2",
    ],
    "host": HOST,
    "host pieces": [*HOST, "optim.reduce_pieces=1"],
    **{
        f"chimera zero {zero} {sync}": [
            f"parallel.zero={zero}", f"parallel.replica_sync={sync}", "parallel.schedule=chimera", "parallel.chunks=2",
            "parallel.pp=4", "parallel.dp=1", "train.micro_batches=4",
        ]
        for zero in (0, 1) for sync in ("end", "eager", "eager-opt")
    },
    **{
        f"chimera dp 2 zero 1 {sync}": [
            "parallel.zero=1", f"parallel.replica_sync={sync}", "parallel.schedule=chimera", "parallel.chunks=2",
        ]
        for sync in ("end", "eager", "eager-opt")
    },
}  # fmt: skip
SUMS = ("dp:reduce_scatter", "dp:all_reduce", "pp:all_reduce")
SMALLEST = 1 << 15
"""Bytes from which on a collective takes the link: those of losses and agreements are smaller."""


def train(folder: Path, options: argparse.Namespace, case: str, is_free: bool, rank: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    from holdfast.trainer.__main__ import parse
    from holdfast.trainer.data.corpus import open_corpus
    from holdfast.trainer.mesh.mesh import choose_device, join
    from holdfast.trainer.run import loop
    from holdfast.trainer.settings.launch import from_environment
    from holdfast.trainer.settings.layout import plan

    settings = {
        "model.d_model": 128, "model.layers": 2 * options.chunks, "model.heads": 2, "data.seq_len": 16,
        "data.cache_dir": folder, "data.path": Path(os.__file__).parent / "json", "data.suffixes": '[".py"]',
        "train.micro_batch_size": 1, "train.micro_batches": REPLICAS * MICRO_BATCHES, "train.log_every": 0,
        "parallel.pp": 2, "parallel.dp": REPLICAS, "parallel.chunks": options.chunks,
    }  # fmt: skip
    named = [f"{key}={value}" for key, value in settings.items()] + CASES[case]
    config = parse([word for one in named for word in ("--set", one)])
    launch = from_environment(os.environ)
    corpus = open_corpus(config.data)
    layout = plan(config, launch.world, corpus.vocab)
    mesh = join(config, launch, layout, choose_device(config, launch))
    trainer = loop.Trainer(config, mesh, corpus)
    sizes = [sum(p.numel() * p.element_size() for p in stage.parameters()) for stage in trainer.stages]
    stage_s = options.ms / 1000 / len(trainer.stages)
    bucket_s = options.ms / 1000 * config.optim.bucket / 2 * 4 / sum(sizes)
    link, waited = slowed(trainer, math.inf if is_free else 1000 * sum(sizes) / options.ms, stage_s, bucket_s)
    found = []
    for step in range(1 + options.steps):
        waited.clear()
        began = time.perf_counter()
        loss = trainer.step(step).loss
        took = time.perf_counter() - began
        found.append({
            "sums": sum(waited[name] for name in SUMS), "gathering": waited["dp:all_gather"],
            "step": took, "loss": loss.hex(), "link": link.take(),
            "last": sizes[0] / sum(sizes) * options.ms / 1000,
        })  # fmt: skip
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found[1:]))
    os._exit(0)


class Link:
    """Work on it ends one after another, at a rate."""

    def __init__(self, bytes_per_s: float) -> None:
        self.rate, self.free, self.used = bytes_per_s, 0.0, 0.0

    def over(self, num_bytes: int, work: Any) -> Any:
        import torch.distributed as dist

        took = num_bytes / self.rate
        self.used += took
        self.free = due = max(self.free, time.monotonic()) + took

        class Late(dist.Work):
            def wait(self, *args: Any) -> bool:
                time.sleep(max(0.0, due - time.monotonic()))
                return bool(work.wait())

        return Late()

    def take(self) -> float:
        used, self.used = self.used, 0.0
        return used


def slowed(trainer: Any, bytes_per_s: float, stage_s: float, bucket_s: float) -> tuple[Link, dict[str, float]]:
    """The trainer's collectives go over the link, and its computations sleep. Seconds are noted by name."""
    import torch
    import torch.distributed as dist

    from holdfast.trainer.optim.host.states import HostStates
    from holdfast.trainer.pipeline.stage import Stage
    from holdfast.trainer.telemetry import spans

    link = Link(bytes_per_s)
    waited: dict[str, float] = defaultdict(float)

    def over_link(name: str, place: int) -> None:
        original = getattr(dist, name)

        def patched(*args: Any, **named: Any) -> Any:
            # A gather's and an exchange's first tensor is what arrives, a sum's what is summed.
            whole = args[place] if args else next(v for v in named.values() if isinstance(v, torch.Tensor))
            blocks = not named.get("async_op", False)
            if whole.nbytes < SMALLEST:
                return original(*args, **named)
            work = link.over(whole.nbytes, original(*args, **{**named, "async_op": True}))
            return work.wait() if blocks else work

        setattr(dist, name, patched)

    for name in ("all_gather_single", "all_gather_into_tensor", "all_to_all_single", "all_reduce"):
        if hasattr(dist, name):
            over_link(name, 0)

    def sleeping(owner: Any, name: str, seconds: float) -> None:
        original = getattr(owner, name)

        def slept(*args: Any, **named: Any) -> Any:
            time.sleep(seconds)
            return original(*args, **named)

        setattr(owner, name, slept)

    sleeping(Stage, "forward", 0.75 * stage_s)
    sleeping(Stage, "backward", 1.5 * stage_s)
    sleeping(HostStates, "_elements", bucket_s)
    sleeping(type(trainer.feed), "read", 1.5 * stage_s)
    original = spans.operation

    def operation(name: str, num_bytes: int = 0) -> Any:
        return Watched(original(name, num_bytes), waited, name)

    spans.operation = operation  # type: ignore[assignment]
    return link, waited


class Watched:
    def __init__(self, inner: Any, waited: dict[str, float], name: str) -> None:
        self.inner, self.waited, self.name = inner, waited, name

    def __enter__(self) -> None:
        self.inner.__enter__()
        self.began = time.perf_counter()

    def __exit__(self, *error: Any) -> None:
        self.waited[self.name] += time.perf_counter() - self.began
        self.inner.__exit__(*error)


def measure(options: argparse.Namespace, case: str, is_free: bool) -> Json:
    """Medians over steps, in ms, and the losses."""
    with scratch() as folder:
        keeper, port = store()
        work: Callable[..., None] = train
        pids = [forked(functools.partial(work, folder, options, case, is_free, rank, port)) for rank in range(RANKS)]
        try:
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        finally:
            os.kill(keeper, 9)
            os.waitpid(keeper, 0)
        if any(codes):
            raise SystemExit(f"reductions.py: ranks ended with {codes}")
        lines = json.loads((folder / "found.json").read_text())
    names = ("sums", "gathering", "step", "link", "last")
    return {name: 1e3 * median(line[name] for line in lines) for name in names} | {
        "losses": [line["loss"] for line in lines]
    }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    made.add_argument("--chunks", type=int, default=4, help="stages of the rank, but for chimera")
    made.add_argument("--ms", type=float, default=400.0, help="of the link to gather, or to sum, all of a rank once")
    made.add_argument("--steps", type=int, default=4, help="that count, after one")
    options = made.parse_args()
    preload()
    found = {}
    for case in options.cases:
        found[case], free = measure(options, case, False), measure(options, case, True)
        found[case]["exposed"] = found[case]["step"] - free["step"]
        found[case]["same_losses"] = found[case].pop("losses") == free["losses"]
    rows = [
        [case, *(f"{one[name]:.0f}" for name in ("link", "last", "sums", "gathering", "exposed", "step"))]
        for case, one in found.items()
    ]
    head = [
        "ms of a step",
        "on the link",
        "the last stage's sum",
        "waited for sums",
        "for gathering",
        "exposed",
        "step",
    ]
    finish({"ms": found}, options.json, head, rows)


if __name__ == "__main__":
    main()
