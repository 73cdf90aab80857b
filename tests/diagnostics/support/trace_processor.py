"""Queries on a trace, as Perfetto's trace processor answers them.

The real one is asked in a browser (perfetto_ui.py). `Importer` answers the same queries in no time: it takes the JSON
in by the rules of Perfetto's importer as its sources state them, the strict reading of each, and counts what that
importer drops:

- Events are handled in order of time, those of one time in order of the file. Times are microseconds that become whole
  nanoseconds, in some versions by cutting off, in others by rounding: here both must give the same.
- A complete event ("X") goes onto its thread's stack. It ends what ended before it or with it; one that begins within
  the slice on top and ends after it is dropped.
- A flow's start ("s") binds to the slice on top of its thread's stack; there must be one, and the id must be new. Its
  end ("f" with bp "e") likewise, and its start must have come before. Binding is by stack and not by time, so here a
  flow outside of the slice that it binds to is an error, too.
- A flow leads from the one of its two slices that began first to the other, whichever it started from.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.plan.plan import RECEIVES, SPANS, Plan
from holdfast.wire.span_rows import THREAD

RANKS = "SELECT DISTINCT name FROM thread WHERE name LIKE 'rank %' ORDER BY name"
NODES = "SELECT DISTINCT name FROM process WHERE name != '' ORDER BY name"
SLICES = """
    SELECT thread.name AS rank, slice.name AS kind, slice.category AS category,
           EXTRACT_ARG(slice.arg_set_id, 'args.action') AS action, EXTRACT_ARG(slice.arg_set_id, 'args.step') AS step,
           slice.dur AS dur
    FROM slice JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid)
    WHERE slice.name != 'transfer'"""
ARROWS = """
    SELECT source_thread.name AS source, source.name AS sent, target_thread.name AS target,
           COALESCE(EXTRACT_ARG(target.arg_set_id, 'args.of'), target.name) AS came,
           EXTRACT_ARG(source.arg_set_id, 'args.step') AS step, EXTRACT_ARG(target.arg_set_id, 'args.step') AS seen,
           EXTRACT_ARG(source.arg_set_id, 'args.micro_batch') AS micro_batch,
           EXTRACT_ARG(target.arg_set_id, 'args.micro_batch') AS received
    FROM flow JOIN slice source ON flow.slice_out = source.id JOIN slice target ON flow.slice_in = target.id
    JOIN thread_track source_track ON source.track_id = source_track.id
    JOIN thread source_thread ON source_track.utid = source_thread.utid
    JOIN thread_track target_track ON target.track_id = target_track.id
    JOIN thread target_thread ON target_track.utid = target_thread.utid"""
ERRORS = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"

Row = dict[str, Any]


class Queried(Protocol):
    def query(self, sql: str) -> list[Row]: ...


class Importer:
    """A trace in SQLite, as tables of the trace processor's names and columns."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.row_factory = sqlite3.Row
        self._db.create_function("EXTRACT_ARG", 2, self._argument, deterministic=True)
        self._db.executescript("""
            CREATE TABLE process (upid INTEGER PRIMARY KEY, pid INT, name TEXT);
            CREATE TABLE thread (utid INTEGER PRIMARY KEY, tid INT, upid INT, name TEXT);
            CREATE VIEW thread_track AS SELECT utid AS id, utid FROM thread;
            CREATE TABLE slice (id INTEGER PRIMARY KEY, ts INT, dur INT, track_id INT, category TEXT, name TEXT,
                                depth INT, arg_set_id INT);
            CREATE TABLE flow (id INTEGER PRIMARY KEY, slice_out INT, slice_in INT);
            CREATE TABLE stats (name TEXT PRIMARY KEY, severity TEXT, value INT);
        """)
        self._arguments: list[Row] = []
        self._threads: dict[tuple[int, int], int] = {}
        self._stacks: dict[int, list[tuple[int, int, int]]] = {}  # of (slice, start, end)
        self._flows: dict[tuple[int, str, str], int] = {}  # to the slice it starts from
        events = json.loads(path.read_text())["traceEvents"]
        assert all(isinstance(event["ph"], str) and event["ph"] in "XsfM" for event in events)
        for event in sorted(events, key=lambda event: _ns(event["ts"]) if event["ph"] != "M" else -1):
            getattr(self, f"_{event['ph'].lower()}")(event)

    def query(self, sql: str) -> list[Row]:
        return [dict(row) for row in self._db.execute(sql)]

    def _m(self, event: Row) -> None:
        name = event["args"].get("name", "")
        if event["name"] == "process_name":
            self._db.execute("INSERT INTO process (pid, name) VALUES (?, ?)", (event["pid"], name))
        elif event["name"] == "thread_name":
            self._db.execute("UPDATE thread SET name = ? WHERE utid = ?", (name, self._thread(event)))

    def _x(self, event: Row) -> None:
        start, track = _ns(event["ts"]), self._thread(event)
        end = start + _ns(event["dur"])
        stack = self._stacks.setdefault(track, [])
        while stack and stack[-1][2] <= start:
            stack.pop()
        if end < start:
            return self._count("slice_negative_duration")
        if stack and end > stack[-1][2]:
            return self._count("slice_drop_overlapping_complete_event")
        self._arguments.append({f"args.{key}": value for key, value in event["args"].items()})
        row = (start, end - start, track, event["cat"], event["name"], len(stack), len(self._arguments))
        cursor = self._db.execute(
            "INSERT INTO slice (ts, dur, track_id, category, name, depth, arg_set_id) VALUES (?, ?, ?, ?, ?, ?, ?)", row
        )
        assert cursor.lastrowid
        stack.append((cursor.lastrowid, start, end))

    def _s(self, event: Row) -> None:
        top = self._top(event)
        if top is None:
            return self._count("flow_no_enclosing_slice")
        if _flow(event) in self._flows:
            return self._count("flow_duplicate_id")
        self._flows[_flow(event)] = top

    def _f(self, event: Row) -> None:
        assert event["bp"] == "e", "binds to the slice that comes next"
        top = self._top(event)
        if top is None:
            return self._count("flow_no_enclosing_slice")
        if _flow(event) not in self._flows:
            return self._count("flow_end_without_start")
        ends = [self._flows[_flow(event)], top]
        ends.sort(key=lambda end: self._db.execute("SELECT ts FROM slice WHERE id = ?", (end,)).fetchone()["ts"])
        self._db.execute("INSERT INTO flow (slice_out, slice_in) VALUES (?, ?)", ends)

    def _top(self, event: Row) -> int | None:
        stack = self._stacks.get(self._thread(event), [])
        if not stack:
            return None
        number, start, end = stack[-1]
        if not (start <= _ns(event["ts"]) < end or start == _ns(event["ts"]) == end):
            self._count("flow_outside_of_its_slice")
        return number

    def _thread(self, event: Row) -> int:
        pid, tid = event["pid"], event["tid"]
        assert all(0 <= number < 2**32 for number in (pid, tid))
        if (pid, tid) not in self._threads:
            cursor = self._db.execute("INSERT INTO thread (tid, upid, name) VALUES (?, ?, '')", (tid, pid))
            assert cursor.lastrowid
            self._threads[pid, tid] = cursor.lastrowid
        return self._threads[pid, tid]

    def _count(self, name: str) -> None:
        self._db.execute(
            "INSERT INTO stats VALUES (?, 'error', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1", (name,)
        )

    def _argument(self, number: int, key: str) -> Any:
        return self._arguments[number - 1].get(key)


def check(trace: Queried, table: SpanTable, plan: Plan, nodes: list[str]) -> None:
    """All that `table` holds, of whole steps of a plan, is in the trace, and nothing of it was dropped."""
    assert trace.query(ERRORS) == []
    assert {_rank(row["name"]) for row in trace.query(RANKS)} == {f"rank {r}" for r in range(plan.mesh.world)}
    assert [row["name"] for row in trace.query(NODES)] == nodes
    slices = trace.query(SLICES)
    table = table.without(THREAD)
    assert len(slices) == len(table)
    steps = sorted(set(table.step.tolist()))
    for rank in range(plan.mesh.world):
        order = plan.orders[plan.mesh.coordinate(rank)["pp"]]
        wanted = Counter((action.id, step) for step in steps for action in order if action.op in SPANS)
        own = (row for row in slices if _rank(row["rank"]) == f"rank {rank}")
        assert Counter((row["action"], row["step"]) for row in own if row["action"]) == wanted
    arrows = trace.query(ARROWS)
    messages = [row for row in arrows if row["came"].startswith("recv_")]
    receives = {SPANS[op] for op in RECEIVES}
    drawn = sum(row["kind"] in receives for row in slices) - _came_before_sent(table, plan)
    assert len(messages) == drawn, "each message has its arrow"
    for row in messages:
        assert row["sent"] == row["came"].replace("recv_", "send_")
        assert (row["step"], row["micro_batch"]) == (row["seen"], row["received"])
    waits = [row for row in arrows if not row["came"].startswith("recv_")]
    assert len(messages) + len(waits) == len(arrows)
    # All but the last to arrive wait, so at least half do. But by two nodes' clocks, which a busy machine measures
    # worse, a rank may seem to be through before the last came.
    collectives = sum(":" in row["kind"] and not row["kind"].startswith("pp:") for row in slices)
    assert len(waits) >= 0.2 * collectives
    for row in waits:
        assert row["source"] != row["target"]
        assert (row["sent"], row["step"]) == (row["came"], row["seen"])


def _rank(row: str) -> str:
    """Spans that lie across each other, as those before and after a clock was set right, go to a second row."""
    return row.partition(" (")[0]


def _came_before_sent(table: SpanTable, plan: Plan) -> int:
    """Messages that took less time than two nodes' clocks differ by: no arrow leads backwards."""
    begun, came = {}, {}
    for i in range(len(table)):
        kind, stage = table.kinds[table.kind[i]], int(table.stage[i])
        where = {axis: at for axis, at in plan.mesh.coordinate(int(table.rank[i])).items() if axis != "pp"}
        what, _, way = kind.partition("_")
        key = (way, *where.values(), int(table.step[i]), int(table.micro_batch[i]))
        if what == "send":
            begun[*key, stage] = int(table.start[i])
        elif what == "recv":
            came[*key, stage + (1 if way == "backward" else -1)] = int(table.end[i])
    assert begun.keys() == came.keys()
    return sum(at <= begun[key] for key, at in came.items())


def _flow(event: Row) -> tuple[int, str, str]:
    assert isinstance(event["id"], int)
    return event["id"], event["cat"], event["name"]


def _ns(us: float) -> int:
    cut, rounded = math.trunc(us * 1000), round(us * 1000)
    assert cut == rounded, f"{us} us is another nanosecond to each version"
    return cut
