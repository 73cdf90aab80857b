"""Go on from memory: the newest step of which all parts are in some node's memory, on whatever layout. No torch.

Snapshots are files of parts like those of a store, only that a part can be read on the node that has it alone. So the
same plans and the same exchange between workers serve both; but what lies on its own node, as its own snapshot or as
the copy of one, each worker reads itself. What several nodes have, any of them may send.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint.errors import CheckpointError, CheckpointMismatch, PartInvalid
from holdfast.checkpoint.format.arrays import HeldShard
from holdfast.checkpoint.format.checksum import CHUNK_BYTES, chunk_sum
from holdfast.checkpoint.format.manifest import Manifest, decode, encode
from holdfast.checkpoint.format.parts import Part
from holdfast.checkpoint.format.tiles import Layout
from holdfast.checkpoint.format.worker_state import merged, without_missing
from holdfast.checkpoint.restore.exchange import fetch, take
from holdfast.checkpoint.restore.host_peers import find_host_peers
from holdfast.checkpoint.restore.reading import SPAN_BYTES, ByteSpan, read_plan, without_targets
from holdfast.checkpoint.restore.restore import Peers, Restored, always, choose
from holdfast.checkpoint.restore.routes import arranged
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Description, Snapshot

PEER_PREFIX = "peer-"


@dataclass(frozen=True, slots=True)
class Copy:
    """A snapshot of one worker in the memory of one node."""

    node: str
    file: str
    description: Description
    snapshot: Snapshot

    @property
    def is_peer(self) -> bool:
        """Whether it was kept for another node."""
        return self.file.startswith(PEER_PREFIX)


@dataclass(frozen=True, slots=True)
class Choice:
    """A step to go on from: a part for each worker that wrote it, and where each part is."""

    manifest: Manifest
    copies: tuple[Copy, ...]
    """In the order of the manifest's parts."""
    everywhere: tuple[tuple[Copy, ...], ...]
    """For each part all nodes' copies of the same bytes, the one above among them."""

    @property
    def source(self) -> str:
        """`memory`, or `peer` when some of it was kept for a node by another."""
        return "peer" if any(copy.is_peer for copy in self.copies) else "memory"


def look(folder: Path, node: str) -> list[Copy]:
    """All snapshots of a job in this node's memory. Files that are none are passed over."""
    found = []
    for path in sorted(folder.glob("*.snap")):
        try:
            arena = Arena.open(path)
        except (OSError, CheckpointError):
            continue
        found += [Copy(node, path.name, arena.description, one) for one in arena.snapshots()]
        arena.close()
    return found


def choices(
    copies: Iterable[Copy],
    layout: Layout,
    job: str,
    settings: str,
    ranks: Mapping[str, Sequence[int]],
    counts: Callable[[Manifest], bool] = always,
    have_own: bool = False,
) -> Iterable[Choice]:
    """What can be gone on from, best first: the newest step, of it the newest generation, own copies before a peer's.

    `ranks`: the ranks on each node. A step counts when its copies together hold all that `layout` wants, and
    it `counts`. `have_own`: workers have state of their own, which is in nobody else's copies, so that in a world of
    the same size a copy of each of them is wanted. Pure.
    """
    takes: dict[tuple[int, int, int], dict[int, list[Copy]]] = {}
    for copy in sorted(copies, key=lambda c: (not c.is_peer, c.snapshot.created)):
        what, one = copy.description, copy.snapshot
        if what.job == job and what.settings == settings and ranks.get(copy.node):
            takes.setdefault((one.step, one.generation, what.world), {}).setdefault(what.worker, []).append(copy)
    for (step, generation, world), parts in sorted(takes.items(), key=lambda pair: pair[0], reverse=True):
        if have_own and world == len(layout.held) and len(parts) < world:
            continue
        chosen = tuple(parts[worker][-1] for worker in sorted(parts))
        manifest = _manifest(job, step, generation, world, chosen)
        if not counts(manifest):
            continue
        try:
            read_plan(manifest, without_missing(layout, manifest))
        except CheckpointMismatch:
            continue  # some worker's part is nowhere
        yield Choice(manifest, chosen, tuple(_alike(copy, parts[copy.description.worker]) for copy in chosen))


def _alike(chosen: Copy, copies: Sequence[Copy]) -> tuple[Copy, ...]:
    """One for each node that has the bytes of `chosen`."""
    by_node = {
        copy.node: copy
        for copy in copies
        if copy.snapshot.sums == chosen.snapshot.sums and copy.description.entries == chosen.description.entries
    }
    return tuple((by_node | {chosen.node: chosen}).values())


def _manifest(job: str, step: int, generation: int, world: int, copies: Sequence[Copy]) -> Manifest:
    tensors = {name: tensor for copy in copies for name, tensor in copy.description.tensors.items()}
    parts = tuple(
        Part(copy.file, copy.description.num_bytes, copy.snapshot.sums, copy.description.worker,
             tuple(copy.description.entries))
        for copy in copies
    )  # fmt: skip
    values = merged({copy.description.worker: copy.snapshot.values for copy in copies})
    return Manifest(step, 0, "", generation, job, 0.0, {"world": world}, tensors, parts, {}, values)


def restore_from_memory(
    group: Peers,
    *,
    layout: Layout,
    job: str,
    settings: str,
    node: str,
    folder: Path,
    at_least: int,
    warn: Callable[[str], None],
    places: Mapping[str, Sequence[HeldShard]] | None = None,
    counts: Callable[[Manifest], bool] = always,
    have_own: bool = False,
) -> tuple[Restored, str] | None:
    """The newest step in the memory of these workers' nodes, and its source; None when there is none.

    Called by all workers together. Steps before `at_least` are of no use: the store has newer ones. A part that is not
    what was written is passed over, as is said by `warn` at rank 0, and the next best is taken.
    `have_own`: see `choices`.
    """
    reported = group.gather(json.dumps([node, [_to_json(copy) for copy in look(folder, node)]]).encode())
    everyone = [json.loads(one) for one in reported]
    ranks: dict[str, list[int]] = {}
    found: dict[tuple[str, str, int], Copy] = {}
    for rank, (where, copies) in enumerate(everyone):
        ranks.setdefault(where, []).append(rank)
        found |= {(where, c["file"], c["snapshot"]["slot"]): _from_json(where, c) for c in copies}
    while True:
        answer: dict[str, Any] = {}
        if group.rank == 0:
            best = next(iter(choices(found.values(), layout, job, settings, ranks, counts, have_own)), None)
            if best is not None and best.manifest.step >= at_least:
                places_of = [
                    {c.node: [c.file, c.snapshot.slot, c.snapshot.seq] for c in alike} for alike in best.everywhere
                ]
                answer = {"manifest": encode(best.manifest).decode(), "places": places_of, "ranks": ranks,
                          "source": best.source}  # fmt: skip
        answer = json.loads(group.broadcast(json.dumps(answer).encode()))
        if not answer:
            return None
        restored, problems = _load(answer, group, layout, node, folder, places)
        if group.all_agree(not problems):
            assert restored is not None
            return restored, answer["source"]
        for line in (line for reported in group.gather(json.dumps(problems).encode()) for line in json.loads(reported)):
            where, file, slot, reason = line
            warn(f"snapshot of step {found[where, file, slot].snapshot.step} passed over: {file} of {where}: {reason}")
            found.pop((where, file, slot), None)


def _load(
    answer: Mapping[str, Any],
    group: Peers,
    layout: Layout,
    node: str,
    folder: Path,
    places: Mapping[str, Sequence[HeldShard]] | None,
) -> tuple[Restored | None, list[tuple[str, str, int, str]]]:
    """This worker's share, and which snapshots were bad."""
    manifest, ranks = decode(answer["manifest"].encode()), answer["ranks"]
    layout = without_missing(layout, manifest)
    beside = [sorted(rank for where in nodes for rank in ranks[where]) for nodes in answer["places"]]
    plan = read_plan(manifest, layout, able=beside)
    slots = {
        part.file: nodes[node] for part, nodes in zip(manifest.parts, answer["places"], strict=True) if node in nodes
    }
    with _Memory(folder, slots) as memory:
        # There may be nothing else to go on from than what the places hold: all is checked before any is touched.
        for number, span in enumerate(plan):
            is_ours = manifest.parts[span.part].file in slots
            if is_ours and checker(span, ranks[node], number) == group.rank:
                memory.check(manifest.parts[span.part], span.start, span.stop)
        filled, sent = None, 0
        if group.all_agree(not memory.bad):
            filled = choose(places, layout, group.rank)
            for span in plan:
                own = [one for one in span.deliveries if group.rank in one.targets]
                if own and group.rank in beside[span.part]:
                    with contextlib.suppress(PartInvalid):  # it is noted, and no worker uses anything
                        there = memory.read_once(manifest.parts[span.part], span.start, span.stop)
                        take(own, there, span.start, filled)
            left = without_targets(plan, beside)
            near = find_host_peers(group, left)
            sent = fetch(manifest, arranged(left, near.hosts), memory, group, filled, near).bytes_sent
        problems = [(node, slots[file][0], slots[file][1], reason) for file, reason in memory.bad.items()]
        return None if filled is None else Restored(manifest, filled, memory.bytes_read, sent), problems


def checker(span: ByteSpan, ranks: Sequence[int], number: int) -> int | None:
    """Which of a node's ranks checks the node's copy of a span's bytes; None when nobody there uses them. Pure.

    `number`: of the span in its plan, so that ranks take turns.
    """
    if span.reader in ranks:
        return span.reader
    used = any(target in ranks for delivery in span.deliveries for target in delivery.targets)
    return ranks[number % len(ranks)] if used else None


class _Memory:
    """Verified reads out of the arenas of this node."""

    def __init__(self, folder: Path, slots: Mapping[str, tuple[str, int, int]]) -> None:
        """`slots`: by the file of a part, the snapshot on this node: its file, slot and number."""
        self._folder, self._slots = folder, slots
        self._arenas: dict[str, Arena] = {}
        self._room = memoryview(bytearray(SPAN_BYTES))
        self.bytes_read = 0
        self.bad: dict[str, str] = {}

    def __enter__(self) -> _Memory:
        return self

    def __exit__(self, *_: object) -> None:
        for arena in self._arenas.values():
            arena.close()

    def check(self, part: Part, start: int, stop: int) -> None:
        """Compare bytes [start, stop) of a snapshot with its checksums; what is wrong is noted in `bad`."""
        try:
            content = self._look(part, start, self._room[: stop - start])
            for at in range(0, stop - start, CHUNK_BYTES):
                number = (start + at) // CHUNK_BYTES
                if chunk_sum(content[at : at + CHUNK_BYTES]) != part.sums[number]:
                    raise PartInvalid(f"corrupt within MiB {number}")
        except (OSError, CheckpointError) as error:
            self.bad.setdefault(part.file, str(error))

    def read(self, part: Part, start: int, stop: int) -> memoryview:
        """Bytes [start, stop) of a snapshot, checked before, by us or by another worker of this node.

        Raises PartInvalid, and notes it in `bad`, when they cannot be read any more.
        """
        return self._read(part, start, memoryview(bytearray(stop - start)))

    def read_once(self, part: Part, start: int, stop: int) -> memoryview:
        """The same; what is returned holds until the next call."""
        return self._read(part, start, self._room[: stop - start])

    def _read(self, part: Part, start: int, room: memoryview) -> memoryview:
        self.bytes_read += len(room)
        try:
            return self._look(part, start, room)
        except (OSError, CheckpointError) as error:
            self.bad.setdefault(part.file, str(error))
            raise PartInvalid(f"{part.file}: {error}") from None

    def _look(self, part: Part, start: int, room: memoryview) -> memoryview:
        file, slot, seq = self._slots[part.file]
        arena = self._arenas.get(file)
        if arena is None:
            arena = self._arenas[file] = Arena.open(self._folder / file)
            # No worker writes while all restore; but the file may not be what was reported.
            if not any(one.slot == slot and one.seq == seq for one in arena.snapshots()):
                raise PartInvalid("is gone")
        arena.read_into(slot, start, room)
        return room


def _to_json(copy: Copy) -> dict[str, Any]:
    one = copy.snapshot
    sums = "".join(f"{value:016x}" for value in one.sums)
    return {"file": copy.file, "description": copy.description.encode().decode(), "snapshot": {
        "slot": one.slot, "seq": one.seq, "step": one.step, "generation": one.generation, "created": one.created,
        "values": dict(one.values), "sums": sums}}  # fmt: skip


def _from_json(node: str, reported: Mapping[str, Any]) -> Copy:
    one = dict(reported["snapshot"])
    text = one.pop("sums")
    sums = tuple(int(text[at : at + 16], 16) for at in range(0, len(text), 16))
    return Copy(
        node, reported["file"], Description.decode(reported["description"].encode()), Snapshot(sums=sums, **one)
    )
