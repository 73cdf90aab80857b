"""A model's tensors in chunks of one size, which move between tiers of memory whole (PatrickStar, TPDS 2022). Pure.

Four lists of chunks have one layout: parameters in half precision, which their gradients replace, the same in single
precision, and Adam's two averages. With replicas, `d` chunks in a row are a group that is gathered at once, and replica
k mod d owns chunk k.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

BYTES_PER_ELEMENT = 2 + 4 + 4 + 4
"""Over the four lists. Gradients need none of their own."""
LEAST_ON_DEVICE = 2
"""Chunks that must fit: one that is computed with, and one that is on its way."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies, counted in elements."""

    chunk: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """Which tensor lies where, in every one of the lists."""

    chunk_size: int
    """Elements."""
    places: Mapping[str, Place]
    num_chunks: int
    """A multiple of the replicas: the last ones may be empty."""
    replicas: int

    @property
    def utilisation(self) -> float:
        """Share of the chunks' elements that are a tensor's; 1 for no chunks."""
        held = sum(place.size for place in self.places.values())
        return held / (self.num_chunks * self.chunk_size) if self.num_chunks else 1.0

    @property
    def elements(self) -> int:
        return self.num_chunks * self.chunk_size

    def tensors_of(self, chunk: int) -> list[str]:
        """Those in a chunk, in their order."""
        return [name for name, place in self.places.items() if place.chunk == chunk]

    def owner(self, chunk: int) -> int:
        """The replica that keeps a chunk between its uses."""
        return chunk % self.replicas

    def group(self, chunk: int) -> range:
        """The chunks that are gathered with one."""
        first = chunk // self.replicas * self.replicas
        return range(first, first + self.replicas)

    @property
    def wire_bytes(self) -> int:
        """What a replica receives in a step: each group gathered for forward and for backward, and its gradients
        reduced, in half precision. 6 M (d - 1) / d for M elements (section 7)."""
        return 3 * 2 * self.elements * (self.replicas - 1) // self.replicas


def lay_out(sizes: Mapping[str, int], chunk_size: int, replicas: int = 1) -> ChunkLayout:
    """Tensors one after the other, in their order; one that does not fit in what is left begins the next chunk.

    ValueError for a tensor that is larger than a chunk.
    """
    places: dict[str, Place] = {}
    chunk = used = 0
    for name, size in sizes.items():
        if size > chunk_size:
            raise ValueError(
                f"{name} has {size} elements and a chunk {chunk_size}: chunks must hold the largest tensor"
            )
        if used + size > chunk_size:
            chunk, used = chunk + 1, 0
        places[name] = Place(chunk, used, size)
        used += size
    count = chunk + 1 if places else 0
    return ChunkLayout(chunk_size, places, -(-count // replicas) * replicas, replicas)


def best_chunk_size(
    sizes: Mapping[str, int],
    candidates: Iterable[int],
    device_bytes: float,
    host_bytes: float,
    replicas: int = 1,
    *,
    word: int = 2,
    held: int = BYTES_PER_ELEMENT,
) -> ChunkLayout:
    """The layout that wastes least of those that fit, the smaller chunks of equal ones.

    `device_bytes`: of one replica, for chunks alone. A replica holds its share of all lists on device and host
    together, `held` bytes an element, and on the device at least `LEAST_ON_DEVICE` groups of parameters, `word` bytes
    an element. ValueError says what would fit.
    """
    found: list[ChunkLayout] = []
    refused: list[str] = []
    for candidate in sorted(set(candidates)):
        if candidate < max(sizes.values(), default=0):
            refused.append(f"{candidate:,} elements are fewer than the largest tensor's")
            continue
        layout = lay_out(sizes, candidate, replicas)
        least = LEAST_ON_DEVICE * replicas * word * candidate
        share = held * layout.elements // replicas
        if least > device_bytes:
            refused.append(
                f"{LEAST_ON_DEVICE} groups of chunks of {candidate:,} elements need {least:,} bytes of a device"
            )
        elif share > device_bytes + host_bytes:
            refused.append(f"chunks of {candidate:,} elements need {share:,} bytes of device and host together")
        else:
            found.append(layout)
    if not found:
        raise ValueError(f"no chunk size fits: {_nearest(refused)}")
    return max(found, key=lambda layout: (layout.utilisation, -layout.chunk_size))


def _nearest(refused: Sequence[str]) -> str:
    return refused[0] if refused else "none was given"
