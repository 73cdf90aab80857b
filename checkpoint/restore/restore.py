"""Read the newest checkpoint that is whole, on whatever layout. No torch.

Each worker checks every byte that it reads, and all must agree; when data is bad and no copy is good, every
worker moves on to the next older checkpoint together, and rank 0 says which file was wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from holdfast.checkpoint.commit.save import Votes
from holdfast.checkpoint.errors import CheckpointError, CheckpointMismatch, PartInvalid
from holdfast.checkpoint.format.arrays import Buffer, HeldShard, new
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.tiles import Layout
from holdfast.checkpoint.format.worker_state import without_missing
from holdfast.checkpoint.restore.copies import Copies
from holdfast.checkpoint.restore.exchange import fetch
from holdfast.checkpoint.restore.host_peers import PeerTransport, Sending, find_host_peers
from holdfast.checkpoint.restore.inspect import Progress
from holdfast.checkpoint.restore.reading import read_plan
from holdfast.checkpoint.restore.routes import arranged
from holdfast.checkpoint.restore.same_step import SameStep
from holdfast.checkpoint.stores.folder import MANIFEST, Slot, committed, parse_manifest
from holdfast.checkpoint.stores.store import Store


class Peers(Votes, PeerTransport, Protocol):
    """The workers that restore together."""


@dataclass(frozen=True, slots=True)
class Restored:
    """One worker's share of a checkpoint."""

    manifest: Manifest
    held: Mapping[str, Sequence[HeldShard]]
    """The shards that the layout gives it, in that order."""
    bytes_read: int
    """Bytes that this worker read for it, from stores or from snapshots."""
    bytes_sent: int
    """Bytes of it that this worker sent to other hosts."""


def always(manifest: Manifest) -> bool:
    """Every state counts."""
    return True


def restore(
    store: Store,
    group: Peers,
    *,
    layout: Layout,
    state: Mapping[str, Any],
    warn: Callable[[str], None],
    mirrors: Sequence[Store] = (),
    places: Mapping[str, Sequence[HeldShard]] | None = None,
    counts: Callable[[Manifest], bool] = always,
    snapshots: Path | None = None,
    problem: Callable[[Mapping[str, Any]], str] = lambda values: "",
) -> Restored | None:
    """The newest checkpoint that is whole, cut to `layout`; None when there is none at all.

    Of those that do not count none is taken while there are others; if there are not, the oldest, as `warn` says.

    Called by all workers together. `mirrors`: other stores with copies of the same checkpoints. `snapshots`: folder of
    the job's snapshots on this node, which repair what a store has wrong of the same step. `places`: this worker's
    shards, as in `layout`, to be filled instead of new ones; what is in them when an error is raised must not be used.
    `problem`: why what a checkpoint has besides tensors cannot be used, in words, "" where one can.
    `warn` gets a line at rank 0 for each checkpoint passed over, and at any rank for what was repaired. Raises
    CheckpointMismatch on all ranks when the newest one belongs to another model or state, and CheckpointError when
    there are checkpoints but not one of them is whole.
    """
    listing = b""
    if group.rank == 0:
        listing = json.dumps(_candidates(store, state, counts, problem, warn)).encode()
    found = json.loads(group.broadcast(listing))
    if found["failed"]:
        raise CheckpointError(found["failed"])
    for slot in (Slot(*pair) for pair in found["slots"]):
        restored, problems = _load([store, *mirrors], slot, group, layout, places, warn, snapshots)
        if restored is not None:
            return restored
        if group.rank == 0:
            warn(f"checkpoint of step {slot.step} passed over: {problems}")
    if found["mismatch"]:
        raise CheckpointMismatch(found["mismatch"])
    if there := len(found["slots"]) + found["damaged"]:
        raise CheckpointError(f"none of the {there} checkpoints in {store.url} is whole")
    return None


def _candidates(
    store: Store,
    state: Mapping[str, Any],
    counts: Callable[[Manifest], bool],
    problem: Callable[[Mapping[str, Any]], str],
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Checkpoints that fit, newest first, up to the first that does not, and why that one does not; how many damaged
    ones were passed over."""
    fitting: list[tuple[int, int]] = []
    left_behind: list[tuple[int, int]] = []
    damaged: list[str] = []
    mismatch = failed = ""

    def pass_over(line: str) -> None:
        damaged.append(line)
        warn(f"checkpoint passed over: {line}")

    try:
        for slot, manifest in committed(store, pass_over):
            require_match(manifest, state)
            if reason := problem(manifest.values):
                pass_over(f"{slot.folder}: {reason}")
                continue
            (fitting if counts(manifest) else left_behind).append((slot.step, slot.term))
    except CheckpointMismatch as error:
        mismatch = str(error)
    except OSError as error:
        failed = f"{store.url}: {error.strerror or error}"
    if left_behind and not fitting and not failed:
        fitting = [min(left_behind)]
        warn(f"no checkpoint is as old as requested: rolling back to the oldest, of step {fitting[0][0]}")
    return {"slots": fitting, "mismatch": mismatch, "failed": failed, "damaged": len(damaged)}


def _load(
    stores: Sequence[Store],
    slot: Slot,
    group: Peers,
    layout: Layout,
    places: Mapping[str, Sequence[HeldShard]] | None,
    warn: Callable[[str], None],
    snapshots: Path | None,
) -> tuple[Restored | None, str]:
    """This worker's share and no problem, or None and, at rank 0, the problem."""
    content = b""
    if group.rank == 0:
        try:
            content = stores[0].read(f"{slot.folder}/{MANIFEST}")
        except OSError as error:
            content = f"{slot.folder}/{MANIFEST}: {error.strerror or error}".encode()
    content = group.broadcast(content)
    try:
        manifest = parse_manifest(content, slot)
    except CheckpointError:
        return None, f"{slot.folder}: its manifest changed while it was read"
    layout = without_missing(layout, manifest)
    plan = read_plan(manifest, layout)
    filled = choose(places, layout, group.rank)
    copies = Copies(stores, slot.folder, warn, SameStep(snapshots, manifest) if snapshots is not None else None)
    near = find_host_peers(group, plan)
    fetched = fetch(manifest, arranged(plan, near.hosts), copies, group, filled, near)
    if group.all_agree(not fetched.problems):
        return Restored(manifest, filled, copies.bytes_read, fetched.bytes_sent), ""
    reported = group.gather("\n".join(f"{slot.folder}/{problem}" for problem in fetched.problems).encode())
    return None, _summary(reported) if group.rank == 0 else ""


def choose(
    places: Mapping[str, Sequence[HeldShard]] | None, layout: Layout, worker: int
) -> Mapping[str, Sequence[HeldShard]]:
    """Where a worker's shards go: its own places, or new memory."""
    mine = layout.held[worker]
    if places is not None:
        return {name: places[name] for name in mine}
    return {name: [new(layout.tensors[name], shard) for shard in shards] for name, shards in mine.items()}


class _Nobody:
    """The wire of a worker without peers."""

    rank = 0

    def send(self, payload: Buffer, to: int, tag: int = 0) -> Sending:
        raise AssertionError("there is no receiver")

    def receive(self, num_bytes: int, source: int, tag: int = 0) -> memoryview:
        raise AssertionError("there is no sender")


def load_whole(
    store: Store,
    slot: Slot,
    manifest: Manifest,
    names: Iterable[str],
    progress: Progress | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, HeldShard]:
    """Whole tensors of a checkpoint, in this process alone, each byte checked. Raises PartInvalid, OSError.

    `report` gets a line for each chunk that was wrong at first.
    """
    tensors = {name: manifest.tensors[name] for name in names}
    layout = Layout(tensors, [{name: [tensor.shard] for name, tensor in tensors.items()}])
    places = {name: [new(tensor, tensor.shard)] for name, tensor in tensors.items()}
    plan = read_plan(manifest, layout)
    done, total = 0, sum(span.stop - span.start for span in plan)
    for span in plan:
        problems = fetch(manifest, [span], Copies([store], slot.folder, report), _Nobody(), places).problems
        if problems:
            raise PartInvalid(f"{slot.folder}/{problems[0]}")
        done += span.stop - span.start
        if progress is not None:
            progress(done, total)
    return {name: shards[0] for name, shards in places.items()}


def require_match(manifest: Manifest, state: Mapping[str, Any]) -> None:
    """Raise CheckpointMismatch, naming the first difference, unless a run with `state` can go on from there."""
    for key in sorted({*manifest.state, *state}):
        if manifest.state.get(key) != state.get(key):
            raise CheckpointMismatch(
                f"checkpoint of step {manifest.step} was written with setting {key} = {manifest.state.get(key)}, "
                f"this run has {state.get(key)}: use the same, or another store"
            )


def _summary(problems: Sequence[bytes]) -> str:
    said = [line for text in problems if text for line in text.decode().split("\n")]
    more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
    return said[0] + more
