"""One trainer's part of an iteration, and its form as a message from the cacher. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.trainer.embeddings.criteo import CATEGORIES, NUMBERS
from holdfast.trainer.embeddings.plans import Iteration, share
from holdfast.trainer.embeddings.servers.keys import Keys, Rows, as_keys
from holdfast.trainer.embeddings.servers.link import Message


@dataclass(frozen=True, slots=True)
class Batch:
    """As `Iteration`, for one trainer; keys within each array are sorted."""

    number: int
    size: int
    """Samples of the batch, over all trainers."""
    keys: npt.NDArray[np.uint64]
    """(own samples, CATEGORIES)."""
    numbers: npt.NDArray[np.float64]
    """(own samples, NUMBERS)."""
    labels: npt.NDArray[np.float64]
    """(own samples,)."""
    fetch: Sequence[tuple[int, Keys]]
    """Rows that this trainer may begin to fetch, by the batch that needs them."""
    arriving: Sequence[Keys]
    """By trainer: rows for this batch that it fetched and sends to all others."""
    lone: Keys
    """Rows for this batch that this trainer fetched and keeps to itself."""
    sync_now: Keys
    sync_later: Keys
    alone: Keys
    """Rows that this trainer alone has a gradient of, and writes back."""
    evict: Keys
    """Other rows that this trainer writes back."""
    leaving: Keys
    """Rows that no cache holds after this batch, whoever writes them back; some were never in this one."""
    flush: bool


def encode(iteration: Iteration, trainer: int) -> tuple[dict[str, Any], Keys, Rows]:
    """A trainer's part as head, keys and rows of a message."""
    trainers = len(iteration.alone)
    own = [iteration.samples[at] for at in share(len(iteration.samples), trainers, trainer)]
    everyone = [*iteration.alone, *iteration.evict]
    lists: list[Sequence[int]] = [
        [key for sample in own for key in sample.keys],
        *(rows[trainer] for rows in iteration.fetch.values()),
        *iteration.arriving,
        iteration.lone[trainer],
        iteration.sync_now,
        iteration.sync_later,
        iteration.alone[trainer],
        iteration.evict[trainer],
        sorted(key for rows in everyone for key in rows),
    ]
    head = {
        "number": iteration.number,
        "size": len(iteration.samples),
        "fetch": list(iteration.fetch),
        "flush": iteration.flush,
        "lengths": [len(one) for one in lists],
    }
    rows = np.array([[*sample.numbers, sample.label] for sample in own], dtype=np.float64).reshape(-1, NUMBERS + 1)
    return head, as_keys(key for one in lists for key in one), rows


def decode(message: Message) -> Batch:
    """What `encode` made."""
    head = message.head
    parts: list[Keys] = np.split(message.keys, np.cumsum(head["lengths"])[:-1])
    samples, *fetch = parts[: 1 + len(head["fetch"])]
    *arriving, lone, now, later, alone, evict, leaving = parts[1 + len(head["fetch"]) :]
    return Batch(
        head["number"],
        head["size"],
        samples.reshape(-1, CATEGORIES),
        message.rows[:, :NUMBERS],
        message.rows[:, NUMBERS],
        list(zip(head["fetch"], fetch, strict=True)),
        arriving,
        lone,
        now,
        later,
        alone,
        evict,
        leaving,
        head["flush"],
    )
