"""Each action of the plan that takes time leaves one span in each step, which names it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from forked import Zygote

from holdfast.agent.probe_file.reader import ProbeReader, Span
from holdfast.plan.plan import RECEIVES, SENDS, SPANS, Op
from holdfast.wire.types import STEP_PARTS

STEPS = 3
CASES: dict[str, tuple[int, list[str]]] = {
    "1f1b": (2, ["parallel.pp=2"]),
    "dp": (2, ["parallel.dp=2", "parallel.zero=0"]),
    "alone": (1, []),
    "interleaved": (2, ["parallel.pp=2", "parallel.schedule=interleaved"]),
    "zbv": (2, ["parallel.pp=2", "parallel.schedule=zbv"]),
    "chimera": (2, ["parallel.pp=2", "parallel.schedule=chimera"]),
    "chimera-doubling": (2, ["parallel.pp=2", "parallel.schedule=chimera-doubling"]),
    "chimera-halving": (2, ["parallel.pp=2", "parallel.schedule=chimera-halving", "train.micro_batch_size=2"]),
    "merak": (2, ["parallel.pp=2", "parallel.schedule=merak-baseline"]),
    "zero 1": (2, ["parallel.dp=2", "parallel.zero=1"]),
    "zero 2": (2, ["parallel.dp=2", "parallel.zero=2"]),
    "zero 3": (2, ["parallel.dp=2", "parallel.zero=3"]),
    "zero 3 bfs by stage": (
        4,
        ["parallel.pp=2", "parallel.dp=2", "parallel.zero=3", "parallel.zero_unit=stage", "parallel.schedule=bfs"],
    ),
}
FAST = ("1f1b", "dp")


@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in FAST else pytest.mark.slow) for c in CASES])
def test_spans_are_the_actions_of_the_plan(zygote: Zygote, tiny: list[str], tmp_path: Path, case: str) -> None:
    world, settings = CASES[case]
    argv = [*tiny, "--steps", str(STEPS), "--set", "train.micro_batches=4"]
    argv += [word for setting in settings for word in ("--set", setting)]
    done = zygote.run("watching:train", world, tmp_path / "run", args={"argv": argv})
    for rank, result in enumerate(done["results"]):
        order = [(Op(op), *rest) for op, *rest in result["order"]]
        wanted = Counter((SPANS[op], *rest) for op, *rest in order if op in SPANS)
        reader = ProbeReader(str(tmp_path / "run" / f"probe-{rank}"))
        found = defaultdict[int, list[Span]](list)
        for span in reader.new_spans():
            found[span.step].append(span)
        meters = reader.sample(time.monotonic_ns()).meters
        assert meters is not None
        assert meters.tokens_per_s > 0
        assert meters.memory_bytes > 1 << 20
        parts = dict(zip(STEP_PARTS, meters.parts, strict=True))
        assert parts["compute"] > 0
        assert parts["optimizer"] > 0
        assert (parts["bubble"] > 0) == any(op in RECEIVES for op, *_ in order)
        reader.close()
        assert sorted(found) == list(range(STEPS))
        for spans in found.values():
            actions = Counter((s.kind, s.stage, s.micro_batch, s.turn) for s in spans if s.stage >= 0)
            assert actions == wanted
            assert all(s.cpu_ns > 0 for s in spans if s.kind in ("forward", "backward"))
            assert all(span.start_ns <= span.end_ns for span in spans)
        transfers = {SPANS[op] for op in SENDS | RECEIVES}
        # float32 (micro_batch_size, seq_len, d_model) of `tiny`.
        # Two micro-batches in a message, or half a one, where the schedule says so.
        message = 4 * 1 * 16 * 32
        sizes = {"chimera-doubling": {message, 2 * message}, "chimera-halving": {message, 2 * message}}
        assert {s.num_bytes for s in found[1] if s.kind in transfers} <= sizes.get(case, {message})
        collectives = [s for s in found[1] if s.kind in ("tp:all_reduce", "dp:reduce_scatter", "dp:all_reduce")]
        assert all(s.num_bytes > 0 for s in collectives)
