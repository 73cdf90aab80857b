"""Model data in chunks: a real trainer on an arena, against the best of all choices of who leaves. Needs torch.

The arena stands for the device; copies into and out of it are really made. The best of all choices is found by trying
them on the moments that the first step has shown, without the policy that is checked.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.trainer.rows.row import Row

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.trainer.chunks.moments import Moment

STEPS = 6
CAPACITY = {"float32": 480_000, "bfloat16": 270_000}
MODEL = {
    "model.layers": 6, "model.d_model": 32, "model.heads": 2, "data.seq_len": 16, "train.micro_batches": 1,
    "train.micro_batch_size": 1, "train.steps": STEPS, "optim.warmup_steps": 2, "model.tied": True,
    "parallel.device": "cpu",
}  # fmt: skip
LAYERS, WIDTH, VOCABULARY, TEXT = 6, 32, 256, 1 << 12
PARAMETERS = LAYERS * (12 * WIDTH**2 + WIDTH) + VOCABULARY * WIDTH + WIDTH
"""12 h^2 and a norm a layer, the table, the last norm."""
Held = tuple[frozenset[int], frozenset[int]]
"""What is on the device, and what of it was written."""


@dataclass(frozen=True, slots=True)
class Trained:
    """One rank after its steps."""

    losses: list[float]
    values: dict[str, Tensor]
    chunks: Any
    moved: list[int]
    """Bytes both ways, by step."""


def trained() -> Iterator[Row]:
    """AdamW in chunks and without: the same bits, and as few bytes moved as can be, below the cap (Fang et al.)."""
    for dtype, bytes_each in (("float32", 16), ("bfloat16", 14)):
        cap = CAPACITY[dtype]
        plain = train({"train.dtype": dtype})
        found = {
            name: train({
                "train.dtype": dtype, "memory.policy": "chunks", "memory.device_bytes": cap, "memory.evict": name,
            })
            for name in ("belady", "lru", "fifo")
        }  # fmt: skip
        one, case = found["belady"], f"{dtype}, {cap:,} bytes of a device"
        laid = one.chunks.chunks
        yield Row(f"bytes of model data over the cap (1), {case}", 1, int(bytes_each * PARAMETERS > cap))
        yield Row(f"the most on the device is below the cap (1), {case}", 1, int(one.chunks.device.arena.peak <= cap))
        unlike = sum(int((one.values[name] != value).sum()) for name, value in plain.values.items())
        yield Row(f"elements unlike those without chunks after {STEPS} steps, {case}", 0, unlike)
        apart = max(abs(a - b) for a, b in zip(one.losses, plain.losses, strict=True))
        yield Row(f"largest difference of losses, {case}", 0.0, apart)
        share = PARAMETERS / (laid.layout.num_chunks * laid.layout.chunk_size)
        yield Row(f"utilisation of {laid.layout.num_chunks} chunks, {case}", share, laid.utilisation, 1e-12)
        moments, limits = one.chunks.device.moments.moments, one.chunks.device.moments.limits
        # All is updated in host memory, so that a step begins with an empty device.
        yield Row(f"groups that the device updates, {case}", 0, len(one.chunks.states.margin))
        least = fewest(moments, [limit // laid.chunk_bytes for limit in limits], STEPS - 1) * laid.chunk_bytes
        yield Row(f"bytes moved in {STEPS - 1} steps, the best of all choices, {case}", least, sum(one.moved[1:]))
        others = min(sum(found[name].moved[1:]) for name in ("lru", "fifo"))
        yield Row(f"no more than LRU and FIFO (1), {case}", 1, int(sum(one.moved[1:]) <= others))


def train(settings: dict[str, object]) -> Trained:
    """So many steps of a trainer on one rank."""
    from holdfast.trainer.data.corpus import Corpus
    from holdfast.trainer.data.shards import Shards
    from holdfast.trainer.mesh.pretended import rank_of
    from holdfast.trainer.run.loop import Trainer
    from holdfast.trainer.settings.layout import plan
    from holdfast.trainer.settings.load import load

    config = load(overrides=[*MODEL.items(), *settings.items()])
    losses, moved = [], []
    with rank_of(plan(config, 1, VOCABULARY)) as mesh, tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text")
        text.write_bytes(bytes(number * number % 251 for number in range(TEXT)))
        trainer = Trainer(config, mesh, Corpus(Shards([text], [TEXT], "uint8"), VOCABULARY, 0))
        for step in range(STEPS):
            losses.append(trainer.step(step).loss)
            if trainer.chunks is not None:
                of_step = trainer.chunks.moved()
                moved.append(of_step.fetched + of_step.evicted)
        values = {
            f"{piece.name}@{key}": value.detach().clone()
            for piece in trainer.slices
            for key, value in {"": trainer.optimizer.value(piece), **trainer.optimizer.state(piece)}.items()
        }
    return Trained(losses, values, trainer.chunks, moved)


def fewest(moments: Sequence[Moment], slots: Sequence[int], steps: int) -> int:
    """Chunks moved, both ways, in so many steps, by the best of all choices of who leaves; the device begins empty.

    `slots`: how many chunks may be on the device in each moment. One that was not written leaves without a copy.
    """
    best: dict[Held, int] = {(frozenset(), frozenset()): 0}
    for moment, room in [*zip(moments, slots, strict=True)] * steps:
        following: dict[Held, int] = {}
        for held, cost in best.items():
            for then, more in _choices(held, moment, room):
                following[then] = min(following.get(then, cost + more), cost + more)
        best = following
    return min(best.values())


def _choices(before: Held, moment: Moment, room: int) -> Iterator[tuple[Held, int]]:
    held, written = before
    wanted = frozenset(moment.groups)
    if moment.is_on_host:
        yield (held - wanted, written - wanted), len(written & wanted)
        return
    others = held - wanted
    # To keep one more is never worse.
    for kept in itertools.combinations(sorted(others), min(len(others), room - len(wanted))):
        left = others - {*kept}
        now = (written - left) | (wanted if moment.is_written else frozenset())
        yield (wanted | {*kept}, now), len(wanted - held) + len(left & written)


def wire_bytes(elements: int, replicas: int, word: int) -> float:
    """6 M (d - 1) / d in half precision (PatrickStar, section 7): gathered twice, reduced once."""
    return 3 * word * elements * (replicas - 1) / replicas


def wire() -> Iterator[Row]:
    """What a replica receives in a step, for the layouts that jobs have."""
    from holdfast.trainer.optim.traffic import chunks_of
    from holdfast.trainer.settings.layout import plan
    from holdfast.trainer.settings.load import load

    for replicas in (2, 4):
        settings = {
            **MODEL, "model.tied": False, "train.micro_batches": replicas, "train.dtype": "bfloat16",
            "parallel.dp": replicas, "parallel.zero": 3, "memory.policy": "chunks",
        }  # fmt: skip
        config = load(overrides=[*settings.items()])
        laid = chunks_of(config, plan(config, replicas, VOCABULARY), VOCABULARY, 0)
        elements = laid.layout.num_chunks * laid.layout.chunk_size
        expected = wire_bytes(elements, replicas, 2)
        yield Row(f"bytes that a replica of a model receives in a step, d {replicas}", expected, laid.wire_bytes)
