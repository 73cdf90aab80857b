"""Which parameter of a model lies in which chunk, and what that takes. Pure.

Four lists of chunks have one layout: parameters, whose gradients replace them; their finer form, which the optimizer
updates; its averages. For bfloat16 with AdamW that is 2 + 4 + 4 + 4 = 14 bytes a parameter, for float32 16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.plan.cache.chunks import ChunkLayout, best_chunk_size, lay_out

UNIT = 64
"""Elements: tensors begin at multiples of it, so that a matrix product reads them as it would read them elsewhere."""
WARM_UP = 0.2
"""Share of the device that chunks may take while nothing is known of what else is there (PatrickStar, 8.1: 0.1 to
0.2)."""
_SIZES, _LARGEST = 97, 4
"""Sizes that are tried, from that of the largest tensor to so many times that."""


@dataclass(frozen=True, slots=True)
class Words:
    """Bytes of an element."""

    parameter: int
    kept: int
    """In the other lists together."""

    @property
    def total(self) -> int:
        return self.parameter + self.kept


@dataclass(frozen=True, slots=True)
class Chunks:
    """Of one model over so many replicas. Replica r has chunk g * replicas + r of group g, in each list."""

    layout: ChunkLayout
    sizes: Mapping[str, int]
    """Elements of each tensor, without what fills its place up."""
    units: Mapping[str, tuple[str, ...]]
    """What is computed at once, in the order of forward, with the tensors that it needs."""
    words: Words

    @property
    def num_groups(self) -> int:
        return self.layout.num_chunks // self.layout.replicas

    @property
    def chunk_bytes(self) -> int:
        """Of a chunk of parameters."""
        return self.layout.chunk_size * self.words.parameter

    @property
    def utilisation(self) -> float:
        """Share of all elements of the chunks that are a parameter's."""
        return sum(self.sizes.values()) / self.layout.elements if self.sizes else 1.0

    def group_of(self, name: str) -> int:
        """The group that a tensor is in."""
        return self.layout.places[name].chunk // self.layout.replicas

    def groups_of(self, unit: str) -> tuple[int, ...]:
        """Those that a unit needs, in order."""
        return tuple(sorted({self.group_of(name) for name in self.units[unit]}))

    def names_of(self, group: int) -> list[str]:
        """All tensors of a group."""
        return [name for name in self.sizes if self.group_of(name) == group]

    def owned(self, replica: int) -> list[str]:
        """All tensors in chunks of a replica, in order."""
        return [name for name in self.sizes if self.layout.owner(self.layout.places[name].chunk) == replica]

    @property
    def active_bytes(self) -> int:
        """What a group that is computed with takes of a device: the replica's own chunk, and with peers all of them."""
        replicas = self.layout.replicas
        return self.chunk_bytes * (1 if replicas == 1 else replicas + 1)

    @property
    def least_bytes(self) -> int:
        """The least of a device that suffices for chunks: what the largest unit needs at once.

        In backward a group that is not finished stays: that of a tensor which is needed at both ends does all along.
        """
        uses: dict[str, int] = {}
        for names in self.units.values():
            for name in names:
                uses[name] = uses.get(name, 0) + 1
        staying = {self.group_of(name) for name, count in uses.items() if count > 1} if self.layout.replicas > 1 else ()
        return max((len({*self.groups_of(unit), *staying}) for unit in self.units), default=0) * self.active_bytes

    @property
    def wire_bytes(self) -> int:
        """What a replica receives in a step: parameters before forward and before backward, gradients behind it.

        6 M (d - 1) / d for M elements in half precision over d replicas (PatrickStar, section 7). A tensor that is
        needed at both ends of the model has its group gathered once more.
        """
        d = self.layout.replicas
        gathered = [self.groups_of(unit) for unit in self.units]
        forward = sum(
            group not in (gathered[place - 1] if place else ())
            for place, groups in enumerate(gathered)
            for group in groups
        )
        return (forward + 2 * self.num_groups) * (d - 1) * self.chunk_bytes

    @property
    def text(self) -> str:
        """One line for people."""
        layout = self.layout
        of_replicas = "" if layout.replicas == 1 else f", {self.num_groups} on each of {layout.replicas} replicas"
        return (
            f"{layout.num_chunks} chunks of {self.chunk_bytes:,} bytes{of_replicas}: {sum(self.sizes.values()):,} "
            f"parameters fill {self.utilisation:.1%} of them; {self.words.total} bytes a parameter"
        )


def units_of(names: Sequence[str], tied: str = "") -> dict[str, tuple[str, ...]]:
    """What of these parameters is computed at once: a layer, or what stands before or behind all layers.

    `tied`: the embedding's name, where the head needs it too.

    >>> units_of(["embed.weight", "layers.0.norm.weight", "layers.0.inward.weight", "head.norm.weight"], "embed.weight")
    {'embed': ('embed.weight',), 'layers.0': ('layers.0.norm.weight', 'layers.0.inward.weight'), \
'head': ('head.norm.weight', 'embed.weight')}
    """
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        found.setdefault(".".join(parts[: 2 if parts[0] == "layers" else 1]), []).append(name)
    if tied:
        found["head"].append(tied)
    return {unit: tuple(held) for unit, held in found.items()}


def in_chunks(
    sizes: Mapping[str, int],
    units: Mapping[str, tuple[str, ...]],
    words: Words,
    replicas: int,
    device_bytes: int,
    chunk_bytes: int = 0,
) -> Chunks:
    """The layout for a device of so many bytes, 0: without limit.

    `chunk_bytes`: of a chunk of parameters, 0: the size that wastes least. Sizes that leave most of the device to
    activations come first. ValueError says what would fit.
    """
    padded = {name: _up(size) for name, size in sizes.items()}
    largest = max(padded.values())

    def made(chunk: int) -> Chunks:
        return Chunks(lay_out(padded, chunk, replicas), sizes, units, words)

    if chunk_bytes:
        chunk = chunk_bytes // words.parameter // UNIT * UNIT
        if chunk < largest:
            raise ValueError(
                f"a chunk of {chunk_bytes:,} bytes is smaller than the largest parameter: "
                f"{largest * words.parameter:,} or more"
            )
        candidates = [chunk]
    else:
        candidates = sorted({_up(largest + largest * (_LARGEST - 1) * n // (_SIZES - 1)) for n in range(_SIZES)})
    least = {chunk: made(chunk).least_bytes for chunk in candidates}
    limit = device_bytes or float("inf")
    fit = [chunk for chunk in candidates if least[chunk] <= WARM_UP * limit]
    fit = fit or [chunk for chunk in candidates if least[chunk] <= limit]
    if not fit:
        raise ValueError(
            f"the parameters of one layer need {min(least.values()):,} bytes of the device at once, and activations "
            f"come on top; there are {device_bytes:,}"
        )
    found = best_chunk_size(padded, fit, float("inf"), 0, replicas, word=words.parameter, held=words.total)
    return Chunks(found, sizes, units, words)


def _up(size: int) -> int:
    return -(-size // UNIT) * UNIT
