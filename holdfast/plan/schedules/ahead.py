"""How far a rank's forwards are ahead of its backwards when the first of these ends. In closed form: no list is built.

So many activations lie on the rank at that time, so it holds no less than that at its fullest. Each function takes
(rank, ranks, chunks, micro-batches) and returns instants, one or several: of each stage of the rank, the micro-batches
that went forward and whose backward is not over. Stages are in the order of the rank's places: its rounds, or its
pipes. Tests hold these to the schedules' own lists.
"""

from __future__ import annotations

from collections.abc import Callable

Instants = list[tuple[int, ...]]
Ahead = Callable[[int, int, int, int], Instants]


def one_f_one_b(rank: int, ranks: int, chunks: int, micro_batches: int) -> Instants:
    return [(min(ranks - rank, micro_batches),)]


def eager_one_f_one_b(rank: int, ranks: int, chunks: int, micro_batches: int) -> Instants:
    return [(min(2 * (ranks - rank) - 1, micro_batches),)]


def all_of_them(rank: int, ranks: int, chunks: int, micro_batches: int) -> Instants:
    """GPipe and breadth-first."""
    return [(micro_batches,) * chunks]


def interleaved(rank: int, ranks: int, chunks: int, micro_batches: int) -> Instants:
    size = _round(ranks, micro_batches)
    return [_in_rounds((chunks - 1) * size + 2 * (ranks - 1 - rank) + 1, size, chunks, micro_batches)]


def interleaved_zero_bubble(rank: int, ranks: int, chunks: int, micro_batches: int) -> Instants:
    """The last half of a backward comes `rank` backwards behind the first half."""
    size = _round(ranks, micro_batches)
    return [_in_rounds((chunks - 1) * size + ranks, size, chunks, micro_batches)]


def folded(rank: int, ranks: int, chunks: int, micro_batches: int) -> Instants:
    """ZBV: the stage on the way out, and the one on the way back."""
    return [(min(2 * ranks - rank - 1, micro_batches), min(rank + 1, micro_batches))]


def dualpipev(rank: int, ranks: int, chunks: int, micro_batches: int) -> Instants:
    """As ZBV, with a forward beside the first backward of the last rank."""
    return [(2 * ranks - rank - 1 + (rank == ranks - 1), rank + 1)]


def chimera(rank: int, ranks: int, chunks: int, micro_batches: int) -> Instants:
    """Of the first unit, when the first backward of each pipe begins on this rank: slots are as the schedule has them,
    2j + s of the j-th forward of a stage s, and 2j + 2 ranks - 1 - s of its backward."""
    each, extra = divmod(min(ranks, micro_batches), chunks)
    apart = 2 * ranks // chunks
    places = []
    for pipe in range(chunks):
        down = (rank - pipe // 2 * apart) % ranks
        places.append((ranks - 1 - down if pipe % 2 else down, each + (pipe < extra)))
    found = []
    for stage, dealt in places:
        now = 2 * ranks - 1 - stage
        if dealt:
            found.append(tuple(_before(now - s, most) - _before(now - (2 * ranks - 1 - s), most) for s, most in places))
    return found


def _before(slots: int, most: int) -> int:
    """Of 0, 2, 4, ... the numbers below `slots`; `most` at most."""
    return min(most, max(0, (slots + 1) // 2))


def _round(ranks: int, micro_batches: int) -> int:
    return micro_batches // max(1, micro_batches // ranks)


def _in_rounds(forwards: int, size: int, chunks: int, micro_batches: int) -> tuple[int, ...]:
    """Of the first so many forwards, those of each stage, where a round does `size` micro-batches of each."""
    rounds, left = divmod(min(forwards, chunks * micro_batches), size * chunks)
    return tuple(rounds * size + min(size, max(0, left - size * chunk)) for chunk in range(chunks))
