"""Bytes that stages hold for their backwards, against a count of a layer's tensors by hand. Needs torch.

Real stages do their rank's list one after the other, alone: what would come from other ranks is made up. Numbers of a
token in a parallel layer of width h with a feed-forward width of 4h: x, the normed x, its scale, the inward matrix's
columns (3h for attention, 4h for the feed-forward layer), turned queries, keys and values (3h), what attention gives
(h) with a number for each head, the outward matrix's input (5h). Selective leaves out what attention saves.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.plan.memory import in_flight
from holdfast.plan.plan import Op, Order
from holdfast.plan.recompute import Recomputation, StageBytes, stage_aware
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.rows.row import Row

if TYPE_CHECKING:
    from holdfast.trainer.mesh.mesh import RankMesh
    from holdfast.trainer.model.model import ModelStage

WIDTH, HEADS, LENGTH, VOCABULARY, WORD = 32, 4, 16, 256, 4


def by_stage() -> Iterator[Row]:
    """As many bytes on each rank as on the last, which keeps all (Merak: within a tenth)."""
    for d, n, layers in ((4, 8, 4), (8, 8, 3)):
        plan = SCHEDULES["1f1b"].plan(d, 1, n)
        sizes = [counted(layers, is_last=stage == d - 1) for stage in range(d)]
        planned = stage_aware(plan, sizes)
        held = [_rank(rank, d, layers, order, planned=planned) for rank, order in enumerate(plan.orders)]
        case = f"D {d}, N {n}, {layers} layers a stage"
        yield Row(f"bytes of the last rank: all, {case}", layers * sizes[-1].whole + sizes[-1].rest, held[-1])
        apart = max(abs(a - b) for a, b in zip(planned.bytes, held, strict=True))
        yield Row(f"bytes of a rank off the plan, at the most, {case}", 0, apart)
        yield Row(f"most of a rank over least, 1 to 1.1, {case}", 1.05, max(held) / min(held), 0.05)
        plain = in_flight(plan)[0] * layers * sizes[0].whole
        yield Row(f"bytes of rank 0 without recompute, {case}", plain, _rank(0, d, layers, plan.orders[0]))


def by_cell() -> Iterator[Row]:
    """N inputs of a stage, and all of one micro-batch; by layer, N inputs of each layer (GPipe, section 2.3)."""
    from holdfast.trainer.pipeline.recompute import add_recompute

    layers, d = 6, 3
    size = counted(layers, is_last=False)
    for n in (4, 8):
        orders = SCHEDULES["gpipe"].build(d, 1, n)
        plain, again = orders[1], add_recompute(orders, range(d))[1]
        case = f"{layers} layers, N {n}"
        yield Row(f"none: bytes, {case}", n * layers * size.whole, _rank(1, d, layers, plain))
        yield Row(f"full: an input of each layer, {case}", n * layers * size.full, _rank(1, d, layers, plain, "full"))
        # The input of the micro-batch that is computed again is one of the N.
        expected = n * size.full + layers * size.whole - size.full
        yield Row(f"cell: N inputs, and one micro-batch, {case}", expected, _rank(1, d, layers, again, "cell"))


def counted(layers: int, is_last: bool) -> StageBytes:
    """By the count above."""
    token = LENGTH * WORD
    head = 2 * WIDTH + 1 + VOCABULARY if is_last else 0  # x, the normed x, its scale, and the loss's
    scalar = WORD if is_last else 0  # what the loss divided by
    whole, selective = (18 * WIDTH + HEADS + 1) * token, (14 * WIDTH + 1) * token
    return StageBytes(layers, whole, selective, WIDTH * token, head * token + scalar)


def _rank(
    rank: int, d: int, layers: int, order: Order, recompute: str = "none", planned: Recomputation | None = None
) -> int:
    """The most bytes that the rank's stage holds at once."""
    from holdfast.trainer.mesh.pretended import rank_of
    from holdfast.trainer.model.model import ModelStage, Moment
    from holdfast.trainer.model.tensor_parallel import Parameters
    from holdfast.trainer.pipeline.recompute import kinds_of
    from holdfast.trainer.settings.layout import TrainerLayout
    from holdfast.trainer.settings.load import load

    settings = {
        "model.d_model": WIDTH, "model.heads": HEADS, "data.seq_len": LENGTH, "model.layers": d * layers,
        "train.recompute": recompute,
    }  # fmt: skip
    own = TrainerLayout(d, 1, 1, 1, 1).layers_of(rank, d * layers)
    with rank_of(TrainerLayout(1, 1, 1, 1, 1)) as mesh:
        make = Parameters(0, mesh.tp, mesh.device)
        module = ModelStage(load(overrides=[*settings.items()]), rank, own, VOCABULARY, make, Moment(0))
        if planned is not None:
            module.recompute = kinds_of(planned.kept, rank, layers)
        return _done(module, rank, d, order, mesh)


def _done(module: ModelStage, rank: int, stages: int, order: Order, mesh: RankMesh) -> int:
    """Do a rank's computations of a step."""
    import torch
    from torch import Tensor

    from holdfast.trainer.model.loss import cross_entropy
    from holdfast.trainer.pipeline.recompute import Saved
    from holdfast.trainer.pipeline.shared_state import Sharing
    from holdfast.trainer.pipeline.stage import Stage

    stage = Stage(module, rank, stages, mesh.device, Sharing(mesh.replicas.get_group(), 0))
    tokens = torch.zeros(1, LENGTH, dtype=torch.int64)
    inputs: list[weakref.ref[Tensor]] = []
    again = {action.micro_batch for action in order if action.op is Op.RECOMPUTE}
    most = 0

    def end(outputs: dict[Any, Tensor]) -> None:
        if stage.is_last:
            for piece, output in outputs.items():
                stage.end(piece, cross_entropy(output, tokens))

    with Saved(module) as saved:
        for action in order:
            piece = (action.micro_batch, 0)
            if action.op is Op.FORWARD:
                x = tokens if stage.is_first else torch.zeros(1, LENGTH, WIDTH)
                inputs.append(weakref.ref(x))
                outputs = stage.forward(action, {piece: x}, action.micro_batch not in again)
                if action.micro_batch not in again:
                    end(outputs)
                del x, outputs
            elif action.op is Op.RECOMPUTE:
                end(stage.recompute(action, [piece]))
            elif action.op is Op.BACKWARD:
                grad = None if stage.is_last else torch.zeros(1, LENGTH, WIDTH)
                stage.backward(action, {piece: grad}, is_last=False)
            # A generator: a list of them would keep them alive.
            alive = (x for x in (one() for one in inputs) if x is not None and x.is_floating_point())
            most = max(most, saved.bytes + sum(x.nbytes for x in alive if not saved.has(x)))
    return most
