"""What one rank of a layout holds and sends: collectives of a layer, ZeRO's bytes, the order of ranks. Needs torch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.trainer.rows.row import Row

WORD = 4
"""Bytes of a float32."""
LAYERS = (1, 3)
TEXT = 4096
"""Bytes, all alike: what is learned does not matter here."""


def parallel_block() -> Iterator[Row]:
    """Collectives of a layer and micro-batch, both ways: two pairs for each matrix in and out (MegaScale, 3.1)."""
    for tp in (2, 4):
        for sequence, name, each in ((True, "gathers and reduce-scatters", 4), (False, "all-reduces", 2)):
            for block, pairs in (("parallel", 1), ("serial", 2)):
                few, many = (_meetings(layers, tp, block, sequence) for layers in LAYERS)
                found = (many - few) / (LAYERS[1] - LAYERS[0])
                yield Row(f"{name} of a {block} layer, tp {tp}", each * pairs, found)


def zero() -> Iterator[Row]:
    """Weights, Adam's two averages and gradients, 16 bytes a parameter in float32 (Rajbhandari et al., section 5)."""
    d = 4
    for stage in (0, 1, 2, 3):
        between, after, sent = _zero(stage, d)
        shares = d if stage else 1
        yield Row(f"bytes a parameter between steps, stage {stage}, d {d}", 3 * WORD / shares, between, 0.02 * WORD)
        yield Row(f"with summed gradients, stage {stage}, d {d}", 4 * WORD / shares, after, 0.02 * WORD)
        times = 3 if stage == 3 else 2
        yield Row(f"words sent a parameter and rank, stage {stage}, d {d}", times * (d - 1) / d, sent, 0.02)


def rank_order() -> Iterator[Row]:
    """tp peers are next to each other, then dp, then pp (MegaScale, 3.1 and 6.3)."""
    from holdfast.trainer.settings.layout import TrainerLayout

    layout = TrainerLayout(4, 8, 8, 1, 8)
    ranks = {layout.coordinate(rank): rank for rank in range(layout.world)}
    steps = (("tp", (0, 0, 1), 1), ("dp", (0, 1, 0), layout.tp), ("pp", (1, 0, 0), layout.tp * layout.dp))
    for axis, place, distance in steps:
        yield Row(f"distance of {axis} peers, pp 4, dp 8, tp 8", distance, ranks[place] - ranks[0, 0, 0])
    nodes = {rank // 8 for (pp, dp, _), rank in ranks.items() if (pp, dp) == (2, 3)}
    yield Row("nodes of 8 that a tp group is on", 1, len(nodes))


def _settings(**values: Any) -> Any:
    from holdfast.trainer.settings.load import load

    small = {"model.d_model": 64, "model.heads": 4, "data.seq_len": 16, "train.micro_batch_size": 1}
    named = {key.replace("__", "."): value for key, value in values.items()}
    return load(overrides=[*(small | named).items()])


def _trainer(config: Any, mesh: Any) -> Any:
    from holdfast.trainer.data.corpus import Corpus
    from holdfast.trainer.data.shards import Shards
    from holdfast.trainer.run.loop import Trainer

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text")
        text.write_bytes(bytes(TEXT))
        return Trainer(config, mesh, Corpus(Shards([text], [TEXT], "uint8"), 256, 0))


def _meetings(layers: int, tp: int, block: str, sequence: bool) -> int:
    """Operations of rank 0 with its tp peers in a step of one micro-batch."""
    from holdfast.trainer.mesh.pretended import rank_of
    from holdfast.trainer.settings.layout import plan
    from holdfast.trainer.telemetry import spans

    config = _settings(
        parallel__tp=tp, parallel__sequence=sequence, model__block=block, model__layers=layers, train__micro_batches=1
    )
    with rank_of(plan(config, tp, 256)) as mesh:
        trainer = _trainer(config, mesh)
        before = spans.operations("tp")
        trainer.gradients(0)
        return spans.operations("tp") - before


def _zero(stage: int, d: int) -> tuple[float, float, float]:
    """Bytes a parameter between steps, and with gradients; words that a rank sends for each in a step."""
    from holdfast.trainer.mesh.pretended import rank_of
    from holdfast.trainer.optim.traffic import traffic
    from holdfast.trainer.rows.pretended import tensor_bytes
    from holdfast.trainer.settings.layout import plan

    # One sample in each position, so that little else than parameters is there.
    config = _settings(parallel__dp=d, parallel__zero=stage, model__layers=2, train__micro_batches=d)
    layout = plan(config, d, 256)
    with rank_of(layout) as mesh:
        empty = tensor_bytes()
        trainer = _trainer(config, mesh)
        count = sum(parameter.numel() for one in trainer.stages for parameter in one.parameters())
        trainer.gradients(0)
        trainer.optimizer.drop()
        for piece in trainer.optimizer.slices:
            trainer.optimizer.set_state(piece, trainer.optimizer.state(piece))
        between = tensor_bytes() - empty
        trainer.gradients(1)
        after = tensor_bytes() - empty
        sent = traffic(config, layout, trainer.plan, 256).replicas / d / WORD
    return between / count, after / count, sent / count
