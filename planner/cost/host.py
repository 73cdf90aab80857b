"""What is in host memory between its uses, and what copies of it cost a step: activations, and model data in chunks.
Pure.

Host memory is the cluster's second tier: its bytes and bytes per second are one device's share, in each direction at
once. Optimizer states there are in memory.py and predict.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.plan.memory import peak
from holdfast.plan.plan import LAST_BACKWARDS, Op, Order
from holdfast.plan.transformer import Transformer
from holdfast.planner.cost.layers import Parts, Precision, parts
from holdfast.planner.cost.layout import Layout, LayoutError

SPARE = 2
"""Blocks that must fit at least where room for one is kept free."""
_Block = tuple[int, int]
"""(stage, micro-batch)."""
CHUNK_MARGIN = 0.8
"""Share of what is free on the device that the optimizer's lists may take (PatrickStar, section 8.2)."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Of one rank's activations in a step, in bytes."""

    out: float
    back: float
    device: float
    """The most on the device, with the room for what comes back..."""
    host: float
    """... and in host memory."""


def saved_bytes(model: Transformer, layout: Layout, found: Parts, stage: int) -> float:
    """What one micro-batch saves in a stage and may leave the device: not what comes in or goes out."""
    kind = layout.recompute if layout.recompute in ("selective", "full") else "none"
    held = len(layout.layers_of(stage, model.layers)) * found.layer.held[kind]
    held += found.first.held[kind] * (stage == 0) + found.last.held[kind] * (stage == layout.stages - 1)
    return held - found.layer.boundary * (stage < layout.stages - 1)


def activation_bytes(model: Transformer, layout: Layout, precision: Precision) -> int:
    """`train.activation_bytes` of a layout: its blocks, of the largest stage."""
    found = parts(model, layout, precision)
    largest = max(saved_bytes(model, layout, found, stage) for stage in range(layout.stages))
    return math.ceil(layout.activation_blocks * largest)


def moved(order: Order, saved: Callable[[int], float], capacity: float) -> Moved:
    """Of a rank's list with `capacity` bytes on the device, where a micro-batch of a stage saves `saved` bytes.

    The one that is needed last leaves first, which moves the fewest (Belady 1966); room for the largest stays free for
    one on its way back. As trainer/pipeline/offload does it, which tests hold this to.
    """
    needed: dict[_Block, list[int]] = {}
    for at, action in enumerate(order):
        if action.op in LAST_BACKWARDS or (action.op is Op.BACKWARD_INPUT and action.stage):
            for micro_batch in action.micro_batches:
                needed.setdefault((action.stage, micro_batch), []).append(at)
    again = {(a.stage, m) for a in order if a.op is Op.RECOMPUTE for m in a.micro_batches}
    sizes = {block: saved(block[0]) for block in needed}
    largest = max(sizes.values(), default=0.0)
    free = 0.0
    if SPARE * largest <= capacity < peak(order, lambda a: saved(a.stage) * len(a.micro_batches) / a.parts):
        free = largest
    capacity -= free
    here: dict[_Block, float] = {}
    there: dict[_Block, float] = {}
    out = back = device = host = 0.0
    for at, action in enumerate(order):
        blocks = [(action.stage, m) for m in action.micro_batches]
        is_made = action.op is Op.RECOMPUTE or (action.op is Op.FORWARD and not again.intersection(blocks))
        if not is_made and at not in needed.get(blocks[0], ()):
            continue
        back += sum(there[block] for block in blocks if block in there and block not in here)
        here.update((block, sizes[block]) for block in blocks)
        total = sum(here.values())
        while total > capacity:
            others = [block for block in here if block not in blocks]
            if not others:
                raise LayoutError(f"activations of one computation take {total:,.0f} bytes, {capacity:,.0f} may stay")
            last = max(others, key=lambda block: next((use for use in needed[block] if use > at), at))
            total -= here.pop(last)
            if last not in there:
                there[last] = sizes[last]
                out += sizes[last]
                host = max(host, sum(there.values()))
        device = max(device, total)
        if action.op in LAST_BACKWARDS:
            for block in blocks:
                here.pop(block, None)
                there.pop(block, None)
    return Moved(out, back, device + free, host)


@dataclass(frozen=True, slots=True)
class InChunks:
    """One replica's model data in chunks (PatrickStar, TPDS 2022), in bytes of one rank."""

    here: float
    """Chunks on the device: parameters, and lists of the optimizer."""
    lists_here: float
    """Of that, the optimizer's."""
    gathered: float
    """Other replicas' chunks of what is computed."""
    gradient: float
    """Gradients on their way into chunks."""
    host: float
    copied: float
    """Both ways in a step."""
    updated_on_host: float
    """Of the optimizer's lists: those that the host updates."""


def in_chunks(model: Transformer, layout: Layout, found: Parts, precision: Precision, beside: float) -> InChunks:
    """`beside`: bytes of the device that are neither chunks nor gathered. LayoutError where a layer does not fit.

    Chunks have the size of the largest tensor. Parameters that stay nowhere come for forward and, those that
    do not stay, for backward again; gradients take their place and go where the optimizer's lists are.
    """
    d, word, kept = layout.dp, precision.weight, precision.optimizer
    chunk = float(max(_tensors(model)))
    params = found.first.params + model.layers * found.layer.params + found.last.params
    groups = math.ceil(params / chunk / d)
    active = min(groups, math.ceil(found.layer.params / chunk / d) + 1 + (model.tied and d > 1))
    gathered = active * chunk * word * (d if d > 1 else 0)
    gradient = chunk * word * d
    room = layout.device_bytes - beside - gathered - gradient - 4.0 * chunk * precision.is_coarse
    parameters, lists = groups * chunk * word, groups * chunk * kept
    if room < active * chunk * word:
        least = layout.device_bytes - room + active * chunk * word
        raise LayoutError(
            f"chunks on {layout.device_bytes:,} bytes of a device: a layer and its activations need {least:,.0f}"
        )
    stay = min(parameters, room)
    share = max(0, min(groups, int((room - parameters) * CHUNK_MARGIN // (chunk * kept)))) / groups
    elsewhere = (1 - share) * parameters
    copied = 2 * elsewhere + (parameters - stay)
    return InChunks(stay + share * lists, share * lists, gathered, gradient, parameters + (1 - share) * lists, copied,
                    (1 - share) * lists)  # fmt: skip


def _tensors(model: Transformer) -> Sequence[int]:
    """Elements of the large ones."""
    inward = model.width * (model.width + 2 * model.kv_width)
    if model.block == "parallel":
        inner = model.width * model.inner
        return model.table_parameters, inward + model.gates * inner, model.width**2 + inner
    return model.table_parameters, inward, model.width * model.inner
