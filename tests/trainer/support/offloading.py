"""One rank's trainer with its activations on the device and partly on the host. Imported in the fork server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from executing import digested
from joining import Joined, joined

from holdfast.trainer.pipeline.offload.blocks import Block, Uses
from holdfast.trainer.run import loop


def each(folder: Path, argv: list[str], recompute: list[str], steps: int) -> dict[str, Any]:
    """By what is recomputed: without a cap, with one that moves nothing, and with two that do."""
    with joined(argv) as rank:
        return {one: _compared(rank, one, steps) for one in recompute}


def _compared(rank: Joined, recompute: str, steps: int) -> dict[str, Any]:
    plain, free = _trained(rank, recompute, steps, 0), _trained(rank, recompute, 1, 1 << 40)
    uses, sizes = free["uses"], free["sizes"]
    at_once = max(sum(sizes[block] for block in one.made + one.needed) for one in uses)
    found = []
    for capacity in (max(1, at_once), max(1, at_once) + 2 * max(sizes.values())):  # 0 would be no cap
        one = _trained(rank, recompute, steps, capacity)
        spare = max(sizes.values()) if max(1, at_once) + max(sizes.values()) <= capacity else 0
        if fewest(uses, sizes, capacity) == (0, 0):
            spare = 0  # nothing has to leave
        expected = [fewest(uses, sizes, capacity - (spare if step else 0)) for step in range(steps)]
        same = one["sizes"] == sizes
        found.append({
            "capacity": capacity, "most": one["most"], "moved": one["moved"], "expected": expected, "same": same,
            "alike": [one[key] == plain[key] for key in ("digests", "losses")], "left": one["left"],
        })  # fmt: skip
    return {"capped": found, "unmoved": free["moved"], "whole": free["most"], "losses": plain["losses"]}


def _trained(rank: Joined, recompute: str, steps: int, capacity: int) -> dict[str, Any]:
    train = replace(rank.config.train, recompute=recompute, activation_bytes=capacity)
    train = replace(train, activations="host" if capacity else "device")
    trainer = loop.Trainer(replace(rank.config, train=train), rank.mesh, rank.corpus)
    offload = trainer.executor.offload
    digests, losses, moved = digested(trainer), [], []
    for step in range(steps):
        losses.append(trainer.step(step).loss.hex())
        if offload is not None:
            moved.append((offload.moved.out, offload.moved.back))
    found: dict[str, Any] = {"digests": digests, "losses": losses, "moved": moved}
    if offload is not None:
        found |= {"uses": offload.uses, "sizes": offload.sizes, "most": offload.peak, "left": offload.held}
    return found


def fewest(uses: Sequence[Uses], sizes: Mapping[Block, int], capacity: int) -> tuple[int, int]:
    """Bytes out and back when what is needed last leaves first: written down for itself."""
    here: list[Block] = []
    copied: set[Block] = set()
    out = back = 0

    def next_need(block: Block, now: int) -> int:
        return next(t for t in range(now + 1, len(uses)) if block in uses[t].needed)

    for now, one in enumerate(uses):
        for block in one.made + one.needed:
            if block in here:
                continue
            while sum(sizes[other] for other in here) + sizes[block] > capacity:
                gone = max((b for b in here if b not in one.made + one.needed), key=lambda b: next_need(b, now))
                here.remove(gone)
                out += 0 if gone in copied else sizes[gone]
                copied.add(gone)
            here.append(block)
            back += sizes[block] if block in one.needed else 0
        here = [block for block in here if block not in one.over]
    return out, back
