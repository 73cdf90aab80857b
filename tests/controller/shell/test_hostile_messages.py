"""Whatever an agent sends, it ends neither the controller nor a job, and changes nothing of what it does not hold."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.base import bounds
from holdfast.base.errors import ProtocolError
from holdfast.controller.journal.journal import Journal
from holdfast.controller.state.events import EventSeen, FrameSeen, Record
from holdfast.controller.state.model import JobStatus
from holdfast.wire import codec as wire
from holdfast.wire import limits as wire_bounds
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.limits import admitted
from holdfast.wire.standing import PastOperation, StallFacts, ThreadSight, ThreadState
from tests.controller.support.virtual import Virtual, training

DOUBLE = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1.0, 1e9, 1e10])
FLOAT = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -1.0])
U32 = st.sampled_from([0, 1, 4, 7, 8, (1 << 31) - 1, (1 << 32) - 1]) | st.integers(0, (1 << 32) - 1)
U64 = st.sampled_from([0, 1, 1 << 40, 1 << 53, 1 << 62, (1 << 63), (1 << 64) - 1]) | st.integers(0, (1 << 64) - 1)
S64 = st.sampled_from([-(1 << 63), -1, 0, 1, 1 << 53, (1 << 63) - 1]) | st.integers(-(1 << 63), (1 << 63) - 1)
S32 = st.sampled_from([-(1 << 31), -1, 0, 1, (1 << 31) - 1])
GENERATION = st.just(1) | U32
TEXT = st.sampled_from(["", "tp:all_reduce", "0-7", "0-999999999", "0-10/0", "long", "\0\n\x1b[2J", "é"]).map(
    lambda text: "x" * 5000 if text == "long" else text
)
TRIPLE = st.none() | st.tuples(S32, S32, S32)
METERS = st.builds(
    t.Meters, mfu=FLOAT, tokens_per_s=FLOAT, parts=st.tuples(*[FLOAT] * 5), memory_bytes=U64, grad_norm=FLOAT
)
GROUP = st.builds(t.GroupCount, label=TEXT, ident=U32, members=TEXT, begun=U64)
STANDING = st.builds(
    t.PendingCollective, kind=TEXT, group=st.integers(-1, 1), number=S64, is_handed=st.booleans(),
    groups=st.tuples(GROUP, GROUP),
)  # fmt: skip
ACTIVITY = st.builds(
    t.Activity, watched=FLOAT, quiet=FLOAT, state=TEXT, cpu=FLOAT, waits_for=TEXT, ends_in=FLOAT,
    has_gpu=st.booleans(), gpu=st.sampled_from(t.GpuUse), events_pending=U64, behind=TEXT,
)  # fmt: skip
THREADS = st.builds(
    ThreadSight, tid=U32, state=st.sampled_from(ThreadState), seconds=FLOAT, ends_in=FLOAT, words=TEXT, count=U32
)
STALL = st.builds(
    StallFacts, threads=st.lists(THREADS, max_size=3).map(tuple), operations=st.just(()), is_complete=st.booleans(),
    holder=TEXT,
)  # fmt: skip
WORKER = st.builds(
    t.WorkerSample, standing=st.none() | STALL, left=st.booleans(),
    rank=U32, generation=GENERATION, pid=U32, step=S64, phase=st.sampled_from(t.Phase),
    operation=TEXT, operation_age=FLOAT, progress_age=FLOAT, tick_age=FLOAT, stopped=st.booleans(), loss=DOUBLE,
    tokens=U64, median_step=FLOAT, coordinate=TRIPLE, sizes=TRIPLE, meters=st.none() | METERS, still_age=FLOAT,
    pending=st.none() | STANDING, activity=st.none() | ACTIVITY,
)  # fmt: skip
STEP = st.builds(
    t.StepRecord, rank=U32, generation=GENERATION, step=S64, end_wall_ns=U64, seconds=DOUBLE, loss=DOUBLE, tokens=U64
)
FOUR = st.sampled_from([b"\0" * 4, b"\xff" * 4])
GAUGE = st.sampled_from([
    "disk_free_bytes//", "worker_blocked/0", "worker_zombie/x", "checkpoint_step", "snapshot_step",
    "clock_offset_seconds", "snapshot_age_seconds", "net/eth0/carrier_changes", "recovery_action",
    "memory_available_bytes", "long",
]).map(lambda name: "n" * 400 if name == "long" else name)  # fmt: skip
NIC = st.builds(t.NicSamples, name=TEXT, tx_total=U64, rx_total=U64, tx=FOUR, rx=FOUR)
CARD = st.builds(t.GpuGauges, index=U32, values=st.dictionaries(GAUGE, DOUBLE, max_size=3))
FRAME = st.builds(
    t.Frame, seq=U64, wall_ns=U64, mono_ns=U64, offsets=FOUR,
    nics=st.lists(NIC, max_size=3).map(tuple),
    host=st.dictionaries(GAUGE, DOUBLE, max_size=5),
    gpus=st.lists(CARD, max_size=3).map(tuple),
    workers=st.lists(WORKER, max_size=4).map(tuple), steps=st.lists(STEP, max_size=4).map(tuple),
    heartbeat_interval=DOUBLE,
)  # fmt: skip


def over_the_wire(message: msg.AgentMessage) -> tuple[msg.AgentMessage, dict[str, int]]:
    refused: dict[str, int] = {}
    return admitted(wire.decode_agent(wire.encode_agent(message)), refused), refused


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(st.lists(FRAME, min_size=1, max_size=3))
@example([t.Frame(0, 0, 0, gpus=(t.GpuGauges(0, {"recovery_action": 1.0}),))])
def test_frames_of_any_values(tmp_path_factory: pytest.TempPathFactory, frames: list[t.Frame]) -> None:
    """node1 forges: the brain decides it without a bug, the journal can hold it, and node0's ranks are as before."""
    v = training()
    journal = Journal(tmp_path_factory.mktemp("journal") / "j.sqlite")
    before = v.brain.jobs.newest.c.ranks.step[:4].tolist()
    for frame in frames:
        message, _ = over_the_wire(frame)
        assert isinstance(message, t.Frame)
        actions = v.feed(FrameSeen("node1", message))
        assert journal.write([a for a in actions if isinstance(a, Record)], 1.0) == []
        assert journal.write_steps("j1", v.brain.jobs.newest.c.ledger.take_dirty()) == []
    assert v.brain.jobs.newest.c.ranks.step[:4].tolist() == before
    v.run(1.0)
    # Reports of its own GPU may evict it, and there is no other node to take.
    has_left = bool(v.brain.c.history("node1").evicted)
    assert v.brain.jobs.newest.c.ranks.step[0] > before[0] or v.job.generation > 1 or has_left
    assert not v.brain.c.history("node0").evicted
    assert v.job.state in (JobStatus.RUNNING, JobStatus.RECOVERING)
    journal.close()


@pytest.mark.parametrize(
    ("past", "is_kept"),
    [
        ([PastOperation("broadcast", 0, 4, -1)] * 48, True),
        ([PastOperation("broadcast", 0, 4, 1)] * 49, False),
        ([PastOperation("broadcast", 0, -1, 1)], False),
        ([PastOperation("broadcast", 0, 4, -2)], False),
        ([PastOperation("x" * 999, 0, 4, 1)], False),
    ],
)
def test_what_a_worker_left_is_within_bounds_or_its_standing_is_not_taken(
    past: list[PastOperation], is_kept: bool
) -> None:
    pending = t.PendingCollective(groups=(t.GroupCount("world", 1, "0-1", 5),))
    standing = StallFacts(past=tuple(past))
    frame, refused = over_the_wire(
        t.Frame(1, 1, 1, workers=(t.WorkerSample(0, 1, 9, pending=pending, standing=standing),))
    )
    assert isinstance(frame, t.Frame)
    assert (frame.workers[0].standing is not None, bool(refused)) == (is_kept, not is_kept)


def test_one_value_that_cannot_be_costs_itself_only() -> None:
    """What each of these did before: ended the controller, silenced its node, stopped the journal."""
    good = t.StepRecord(4, 1, 50, 10**18, 0.3, 1.0, 128)
    bad = [
        good._replace(tokens=1 << 62),
        good._replace(step=-1),
        good._replace(step=1 << 60),
        good._replace(seconds=math.nan),
        good._replace(seconds=math.inf),
        good._replace(seconds=-1.0),
        good._replace(rank=bounds.MAX_RANKS),
        good._replace(end_wall_ns=(1 << 64) - 1),
    ]
    message, refused = over_the_wire(t.Frame(1, 1, 1, steps=(*bad, good)))
    assert isinstance(message, t.Frame)
    assert message.steps == (good,)
    assert refused == {"step": len(bad)}
    worker = t.WorkerSample(4, 1, 99, step=-(1 << 60), progress_age=-5.0, tick_age=math.inf, sizes=(1 << 30,) * 3,
                            coordinate=(0, 0, 0), operation="x" * 9999, median_step=0.5)  # fmt: skip
    message, refused = over_the_wire(t.Frame(1, 1, 1, workers=(worker, worker._replace(rank=bounds.MAX_RANKS))))
    assert isinstance(message, t.Frame)
    (kept,) = message.workers
    assert (kept.step, kept.progress_age, kept.tick_age, kept.sizes) == (-1, 0.0, bounds.MAX_SECONDS, None)
    assert (len(kept.operation), kept.median_step, refused) == (bounds.MAX_NAME, 0.5, {"worker": 2})


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (t.Frame(1, 1, 1, heartbeat_interval=math.nan), "gauge"),
        (t.Frame(1, 1, 1, host={"a": math.inf, "b": 1.0}), "gauge"),
        (t.Frame(1, 1, 1, host={f"g{n}": 1.0 for n in range(bounds.MAX_GAUGES + 1)}), "gauge"),
        (t.Frame(1, 1, 1, gpus=(t.GpuGauges(bounds.MAX_GPUS, {}),)), "device"),
        (t.Frame(1, 1, 1, nics=tuple(t.NicSamples(f"n{n}", 0, 0) for n in range(bounds.MAX_NICS + 1))), "device"),
        (t.Frame(1, 1, 1, workers=tuple(t.WorkerSample(r, 1, 1) for r in range(bounds.MAX_WORKERS + 1))), "worker"),
        (msg.LogChunk("j", 1, 0, "out", "x" * (2 << 20)), "text"),
        (msg.CommandResult("c", True, data={"k" * 999: "v"}), "text"),
        (msg.Numbered(1, t.AgentNotice(1, "kind", t.Severity.INFO, "x" * (1 << 20))), "text"),
        (msg.Numbered(1, t.StateRestored("j", 1, 1 << 63, "store", math.nan, 1 << 63)), "step"),
        (msg.Numbered(1, t.StateRestored("j", 1, 1, "store", 1.0, 1, bounds.MAX_COUNT + 1)), "step"),
        (msg.Numbered(1, t.ImportsTimed("j", 1, math.nan, "torch")), "step"),
        (msg.Spans((msg.WorkerSpans(0, 1, bounds.MAX_SPANS + 1, 0, 0, 1, ("",), b""),), 0, 0), "spans"),
        (msg.Spans((msg.WorkerSpans(0, 1, 1, 0, 0, 1, ("n",) * 99, b""),), 0, 0), "spans"),
        (msg.Spans((msg.WorkerSpans(0, 1, 1, 0, 0, 1, ("",), b"x" * 9999),), 0, 0), "spans"),
    ],
)  # fmt: skip
def test_each_limit_is_counted_by_its_reason(message: msg.AgentMessage, reason: str) -> None:
    back, refused = over_the_wire(message)
    assert set(refused) == {reason}
    assert reason in wire_bounds.REASONS
    assert over_the_wire(back)[1] == {}  # what is left is within


@pytest.mark.parametrize("node", ["", "a\nb", "a/b", "x" * 300, "\x1b[2J"])
def test_a_node_has_a_name_that_can_be_printed(node: str) -> None:
    with pytest.raises(ProtocolError, match="hello: "):
        over_the_wire(msg.Hello(t.Identity(node, "h", "i1")))


def test_news_of_ranks_that_a_node_does_not_hold_are_not_its_to_report() -> None:
    v = training()
    assert v.job.ranks_on("node1") == range(4, 8)
    best = v.job.best_step
    lies = [t.StepRecord(0, 1, best + 100, 10**18, 0.3, math.inf)]
    sample = t.WorkerSample(0, 1, 1, step=best + 100, stopped=True, tick_age=50.0)
    v.feed(FrameSeen("node1", t.Frame(1, 1, 1, workers=(sample,), steps=tuple(lies))))
    assert v.brain.jobs.newest.c.ranks.step[0] <= best
    assert not v.brain.jobs.newest.c.ranks.stopped[0]
    for rank in (0, 99, 4_000_000_000):
        v.feed(EventSeen("node1", t.WorkerExited("j1", 1, rank, 1, 1, 1, error="no")))
    v.feed(EventSeen("node1", t.PlanPublished("j1", 1, b"forged")))
    v.run(1.0)
    assert (v.job.state, v.job.generation, v.incidents) == (JobStatus.RUNNING, 1, [])
    assert v.brain.jobs.newest.c.plan is None
    assert v.job.best_step < best + 100


# --- alerts ----------------------------------------------------------------------------------------------------


def warn(v: Virtual, text: str, node: str = "node1") -> None:
    v.feed(EventSeen(node, t.AgentNotice(1, "test", t.Severity.WARNING, text)))


def test_the_same_notice_a_hundred_times_a_second_is_one_alert() -> None:
    v = training()
    for _ in range(5):
        for _ in range(100):
            warn(v, "the disk is slow")
        v.run(1.0)
    assert [i.cause.kind for i in v.incidents] == ["agent", "alerts-suppressed"]
    assert v.brain.alerts.suppressed == 499
    assert v.brain.c.book.counts["agent"] == 500
    v.run(700.0)
    warn(v, "the disk is slow")
    assert [i.cause.kind for i in v.incidents].count("agent") == 2


def test_notices_that_differ_are_bounded_by_node_and_minute() -> None:
    v = training()
    for n in range(300):
        warn(v, f"trouble number {n}")
    warn(v, "trouble", node="node0")
    kinds = [i.cause.kind.value for i in v.incidents]
    assert kinds.count("agent") == bounds.MAX_ALERTS + 1
    assert kinds.count("alerts-suppressed") == 1
    v.run(61.0)
    warn(v, "trouble number 301")
    assert [i.cause.kind for i in v.incidents].count("agent") == bounds.MAX_ALERTS + 2


def test_incidents_in_memory_are_bounded_and_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.controller.cluster.incidents.MAX_INCIDENTS", 20)
    v = training()
    for n in range(60):
        warn(v, f"trouble number {n}", node=f"node{n}")
    assert len(v.incidents) == 20
    assert [i.id for i in v.incidents] == [f"i{n}" for n in range(41, 61)]
    assert v.brain.c.book.forgotten == {"agent": 40}
    v.exit(0, signal=9)
    v.run(3.0)
    assert v.job.generation == 2  # the job's own incident was none of those that left
    v.restart_controller()
    v.run(1.0)
    warn(v, "trouble at last")
    assert v.incidents[-1].id == "i63"


# --- the journal ------------------------------------------------------------------------------------------------


def test_documents_that_are_damaged_are_left_out_and_the_job_goes_on() -> None:
    v = training()
    warn(v, "trouble")
    v.saved["incident", "i1"] = {"id": "i1"}
    v.saved["incident", "i9"] = {"findings": [{"kind": "no such kind"}]}
    v.saved["node", "node1"] = {"cordoned": True, "node_failures": 7}
    v.saved["time", "newest"] = {"job": "j1", "nonsense": []}
    v.saved["diagnosis", "d1"] = {"nonsense": 1}
    v.saved["plan", "newest"] = {"job": "j1", "generation": 1, "data": "%"}
    v.saved["exit", "j1:x"] = {"job": "j1", "generation": 1}
    v.restart_controller()
    assert {text.split(" ")[0] for text in v.brain.damaged} >= {"incident", "node", "time"}
    v.run(3.0)
    assert (v.job.state, v.job.generation) == (JobStatus.RUNNING, 1)


def test_the_newest_job_must_be_readable() -> None:
    v = training()
    doc: dict[str, Any] = json.loads(json.dumps(v.saved["job", "j1"]))
    del doc["spec"]["nnodes"]
    v.saved["job", "j1"] = doc
    with pytest.raises(Exception, match=r"newest job cannot be read \(job j1: .*docs/operations"):
        v.restart_controller()


def test_what_the_journal_refuses_is_reported_once_and_ends_nothing(tmp_path: Path) -> None:
    from tests.controller.support.stage import make_shell

    shell = make_shell(tmp_path)
    shell._write([Record("node", "\ud800", {}), Record("node", "node0", {"cordoned": False})])
    kinds = [i.cause.kind for i in shell.brain.c.book.incidents.values()]
    assert kinds == ["journal-damaged"]
    assert {key for kind, key, _ in shell.journal.entities() if kind == "node"} == {"node0"}
    shell._write([Record("node", "\ud800", {})])
    assert len(shell.brain.c.book.incidents) == 1
    shell.journal.close()


def test_a_hello_is_cut_to_what_a_node_can_have() -> None:
    identity = t.Identity(
        "node0", "h" * 999, "i1", ips=("1.2.3.4",) * 999, pod=t.Pod("p" * 999),
        gpus=tuple(t.Gpu(n, "u" * 999, "m", "p") for n in range(200)),
        nics=tuple(t.Nic(f"n{n}", "rdma") for n in range(999)), switch="s" * 999, slots=1 << 31,
        versions={f"v{n}": "1" * 999 for n in range(999)}, ping_port=70_000,
    )  # fmt: skip
    message, refused = over_the_wire(msg.Hello(identity))
    assert isinstance(message, msg.Hello)
    i = message.identity
    assert (len(i.gpus), len(i.nics), len(i.ips), len(i.versions)) == (bounds.MAX_GPUS, bounds.MAX_NICS, 64, 64)
    assert (i.slots, i.ping_port, len(i.hostname), len(i.pod.name)) == (bounds.MAX_WORKERS, 0, 256, 256)
    assert set(refused) == {"device", "text"}
    assert len(repr(dataclasses.asdict(i))) < 300_000
