"""State that belongs to one worker, beside what belongs to the job. Pure.

Values that are no tensors: those of worker 0 are the job's; what another worker has otherwise stands under `workers`.
Tensors of one worker alone carry its number: `worker.00003.rng.cpu`. Both go back to the worker of the same number, and
only in a world of the same size: with more or fewer workers they have no defined owner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.tiles import Layout

WORKERS = "workers"
_OWN = re.compile(r"worker\.[0-9]{5,}\.")


def own_name(worker: int, name: str) -> str:
    """What a tensor is called that `worker` alone has."""
    return f"worker.{worker:05d}.{name}"


def is_own_name(name: str) -> bool:
    """Whether a tensor is called like one that a single worker has."""
    return _OWN.match(name) is not None


def merged(values: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """What the workers each have, as values of a job. Undone by `of_worker`."""
    job = dict(values[min(values)])
    others = {
        str(worker): {key: value for key, value in theirs.items() if key not in job or not _is_same(value, job[key])}
        for worker, theirs in sorted(values.items())
    }
    differing = {worker: theirs for worker, theirs in others.items() if theirs}
    return {**job, WORKERS: differing} if differing else job


def _is_same(one: Any, other: Any) -> bool:
    """As JSON: 1, 1.0 and true are equal to Python, and so are 0.0 and -0.0."""
    return bool(one == other) and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def of_worker(values: Mapping[str, Any], worker: int) -> dict[str, Any]:
    """What `worker` had."""
    job = {key: value for key, value in values.items() if key != WORKERS}
    own: dict[str, Any] = values.get(WORKERS, {}).get(str(worker), {})
    return job | own


def differing(values: Mapping[str, Any]) -> set[str]:
    """Names of values that were not the same for all workers."""
    return {key for theirs in values.get(WORKERS, {}).values() for key in theirs}


def without_missing(layout: Layout, manifest: Manifest) -> Layout:
    """`layout` without the tensors of single workers that a checkpoint has not, or has from another world."""
    world = 1
    for size in manifest.mesh.values():
        world *= size
    fits = world == len(layout.held)
    gone = {
        name
        for name, tensor in layout.tensors.items()
        if is_own_name(name) and not (fits and manifest.tensors.get(name) == tensor)
    }
    if not gone:
        return layout
    tensors = {name: tensor for name, tensor in layout.tensors.items() if name not in gone}
    held = [{name: shards for name, shards in mine.items() if name not in gone} for mine in layout.held]
    return Layout(tensors, held, layout.values)


def by_the_first(layout: Layout, names: frozenset[str]) -> Layout:
    """`layout` as if only the first worker that has a tensor of `names` held it."""
    seen: set[str] = set()
    held = []
    for mine in layout.held:
        held.append({name: shards for name, shards in mine.items() if name not in seen})
        seen |= names.intersection(mine)
    return Layout(layout.tensors, held)
