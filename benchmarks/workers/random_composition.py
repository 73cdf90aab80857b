"""Composes a random script of `benchmarks/pauses.py` from a seed and an index: an honest script with pauses, or one
with a true hang. Pure. Uses nothing of Holdfast: the judge must not be tested against itself.

Even indices are honest scripts, odd ones hangs.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from random_catalog import (
    FORKING,
    FRAMEWORKS,
    GROUPS,
    HANG_PLACES,
    IDLE,
    LOCAL,
    MAIN_ONLY,
    ONE_RANK,
    PLACES,
    SHARED,
    SIMPLE,
    SLOW_TO_START,
    TRACED,
    WHATS,
    WHOLE_JOB,
    named,
)

WORLD = 3
CHECKPOINT_EVERY = 5
IDLE_LIMIT_S, SHORT_IDLE_LIMIT_S, START_LIMIT_S = 60.0, 8.0, 300.0
"""The default, what most hangs that wait for it are given, to save time, and the default before the first step."""
STEPS_KNOWN = 3
"""Steps from which on their usual time is known (docs/pauses.md)."""


@dataclass(frozen=True, slots=True)
class Event:
    what: str
    """A key of the pauses, or of the hangs."""
    place: str
    step: int
    ranks: tuple[int, ...]
    """Those that pause, or the odd one of a hang; empty: no rank is odd."""
    seconds: float = 0.0
    thread: str = "main"
    """`main`; `joined`: a thread that the main thread joins; `beside`: a thread, while the main thread goes on."""


@dataclass(frozen=True, slots=True)
class Composition:
    seed: int
    index: int
    framework: str
    groups: str
    steps: int
    loader_workers: int
    is_executed_again: bool
    """It replaces itself by `os.execv` at its start."""
    pauses: tuple[Event, ...] = ()
    hang: Event | None = None
    idle_limit_s: float = IDLE_LIMIT_S

    @property
    def is_honest(self) -> bool:
        return self.hang is None

    def truth(self) -> dict[str, Any]:
        """The expected verdict. Life: `dead` in 2 s, `idle` at the limit, `either` of them; `left`: a rank is gone."""
        hang = self.hang
        if hang is None:
            return {"set": "honest", "kind": "+".join(p.what for p in self.pauses), "composition": asdict(self)}
        kind = {**LOCAL, **SHARED}[hang.what]
        odd = f"rank{hang.ranks[0]}" if hang.ranks else "job"
        is_before_steps = hang.place in ("start", "first")
        is_early = is_before_steps or hang.step < STEPS_KNOWN
        # Steps of optimizers are counted.
        has_no_steps = (is_before_steps or self.framework == "own-update") and self.idle_limit_s == IDLE_LIMIT_S
        return {
            "set": "hang", "kind": hang.what, "life": kind.life, "named": named(kind, odd),
            "within_s": SLOW_TO_START.get(hang.what, 2.0) if is_early else 2.0,
            "limit_s": START_LIMIT_S if has_no_steps else self.idle_limit_s,
            "marks": WORLD if hang.what in SHARED else 1, "composition": asdict(self),
        }  # fmt: skip


def composed(seed: int, index: int) -> Composition:
    rng = random.Random(f"{seed}:{index}")
    return _hang(rng, seed, index) if index % 2 else _honest(rng, seed, index)


def _honest(rng: random.Random, seed: int, index: int) -> Composition:
    framework = _weighted(rng, FRAMEWORKS)
    groups = rng.choice(GROUPS[framework])
    steps = rng.randint(10, 18)
    workers = rng.choice((0, 0, 1)) if framework != "rpc" else 0
    count = rng.choices((1, 2), (0.65, 0.35))[0]
    pauses = tuple(_pause(rng, framework, groups, steps, workers) for _ in range(count))
    return Composition(seed, index, framework, groups, steps, workers, rng.random() < 0.04, pauses)


def _pause(rng: random.Random, framework: str, groups: str, steps: int, workers: int) -> Event:
    is_beside = groups != "none" and rng.random() < 0.35
    place = groups if is_beside else rng.choice(PLACES[framework])
    thread = rng.choices(("main", "joined", "beside"), (0.6, 0.2, 0.2))[0]
    if framework == "compiled" and rng.random() < 0.4:
        place, what, thread = "loader", "recompile", "main"
    elif place == "loader" and workers:  # in a daemon process, which may have no children of multiprocessing
        what, thread = rng.choice(SIMPLE), "main"
    else:
        what = rng.choice([w for w in WHATS if _fits(w, place, thread)])
    if what in ONE_RANK or framework == "subgroup":
        ranks: tuple[int, ...] = (rng.randrange(2),)
    elif framework == "rpc" and place not in ("start", "exit", "late-exit"):
        ranks = (0,) if place != "remote" else rng.choice(((1,), (2,), (1, 2)))
    else:
        ranks = _some(rng)
    return Event(what, place, _step(rng, place, steps), ranks, _seconds(rng, what), thread)


def _fits(what: str, place: str, thread: str) -> bool:
    if what in MAIN_ONLY and (thread != "main" or place in ("writer", "remote", "thread")):
        return False
    if what in WHOLE_JOB and place in ("start", "exit", "late-exit"):  # not all processes are there
        return False
    if what == "compile" and place in ("backward", "gradient", "unpickle", "remote", "writer", "thread"):
        return False
    return not (what in (*TRACED, *FORKING) and place == "late-exit")


def _some(rng: random.Random) -> tuple[int, ...]:
    count = rng.choices((1, 2, 3), (0.6, 0.2, 0.2))[0]
    return tuple(sorted(rng.sample(range(WORLD), count)))


def _seconds(rng: random.Random, what: str) -> float:
    """Most are short."""
    low, high = rng.choices(((2.0, 5.0), (5.0, 12.0), (12.0, 25.0)), (0.6, 0.28, 0.12))[0]
    # What is sized by its work takes many times as long on a busy machine.
    return round(min(rng.uniform(low, high), 5.0 if what in ("sort", "garbage", "page-faults") else high), 1)


def _step(rng: random.Random, place: str, steps: int) -> int:
    if place in ("checkpoint", "writer"):
        return rng.choice(range(CHECKPOINT_EVERY - 1, steps - 1, CHECKPOINT_EVERY))
    return rng.randint(1, steps - 2)


def _hang(rng: random.Random, seed: int, index: int) -> Composition:
    framework = _weighted(rng, {k: v for k, v in FRAMEWORKS.items() if k not in ("rpc", "compiled", "subgroup")})
    steps = rng.randint(10, 18)
    is_local = rng.random() < 0.55
    what = rng.choice(sorted(LOCAL if is_local else SHARED))
    kind = {**LOCAL, **SHARED}[what]
    places: Sequence[str] = kind.places or [p for p in PLACES[framework] if p in HANG_PLACES]
    place = rng.choice(places)
    if place not in PLACES[framework]:
        place = "between"
    thread = "joined" if kind.may_be_in_thread and rng.random() < 0.25 else "main"
    ranks = (rng.randrange(WORLD),) if not kind.has_no_odd_rank else ()
    hang = Event(what, place, _step(rng, place, steps), ranks, thread=thread)
    is_default = rng.random() < (0.1 if kind.life in IDLE else 0.5)
    limit = IDLE_LIMIT_S if is_default else SHORT_IDLE_LIMIT_S
    groups = rng.choice(("none", "none", "sub", "object"))
    return Composition(seed, index, framework, groups, steps, 0, False, hang=hang, idle_limit_s=limit)


def _weighted(rng: random.Random, weights: dict[str, float]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]
