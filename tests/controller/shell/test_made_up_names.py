"""Made-up names: memory is bounded, and no other agent is affected by them."""

import asyncio
from pathlib import Path

import pytest

from holdfast.base.bounds import MAX_RANKS
from holdfast.base.errors import UsageError
from holdfast.controller.detectors.base import windows
from holdfast.controller.shell.log_hub import LogHub
from holdfast.controller.spans.samples import Samples
from holdfast.controller.spans.window import SpanWindows, memory_of
from holdfast.controller.state.events import AgentJoined, AgentLeft, CordonRequested
from holdfast.controller.state.job_size import check_size
from holdfast.controller.state.model import JobSpec, JobStatus
from holdfast.diagnostics.steps import span_table
from holdfast.wire import messages as msg
from holdfast.wire import rank_sets
from holdfast.wire import types as t
from holdfast.wire.span_rows import ROW, pack
from tests.controller.support.stage import agent, eventually, stage
from tests.controller.support.virtual import Virtual, training


def come_and_go(v: Virtual, name: str) -> None:
    v.feed(AgentJoined(msg.Hello(t.Identity(name, "host", f"i-{name}"))))
    v.feed(AgentLeft(name, f"i-{name}"))


def test_nodes_that_are_gone_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that a job is on, that are connected, or of which something is known."""
    monkeypatch.setattr("holdfast.controller.brain.membership.MAX_NODES", 10)
    v = training(nodes=3)
    come_and_go(v, "known")
    v.feed(CordonRequested("known", True))
    v.kill_agent("node1")
    for n in range(100):
        come_and_go(v, f"made-up{n}")
    names = set(v.brain.c.nodes)
    assert len(names) == 10
    assert {"node0", "node1", "node2", "known", "made-up99"} <= names
    assert "made-up0" not in names
    assert len(v.brain.c.histories) <= 11
    v.join("node1")
    v.run(1.0)
    assert (v.job.state, v.job.generation) == (JobStatus.RUNNING, 1)


def test_names_that_were_used_once_make_no_agent_report_less_often() -> None:
    v = Virtual(nodes=2)
    for n in range(2000):
        come_and_go(v, f"made-up{n}")
    assert v.brain.c.connected == 2
    assert v.brain.c.heartbeat_interval == v.options.heartbeat_interval
    for n in range(1000):
        v.feed(AgentJoined(msg.Hello(t.Identity(f"real{n}", "host", f"i{n}"))))
    assert v.brain.c.connected == 1002
    assert v.brain.c.heartbeat_interval > v.options.heartbeat_interval


def test_a_name_beyond_what_is_kept_is_refused_while_all_others_are_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.controller.brain.membership.MAX_NODES", 2)

    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port, "node0") as zero, agent(here.port, "node1") as one:
            await eventually(lambda: zero.link.connected and one.link.connected)
            async with agent(here.port, "node2") as two:
                await eventually(lambda: here.shell.sessions.received.refused["name"] >= 1)
                assert not two.link.connected
                assert set(here.brain.c.nodes) == {"node0", "node1"}

    asyncio.run(story())


def test_a_node_that_fell_silent_has_no_share_of_the_samples() -> None:
    now = 0.0
    samples = Samples(1000, clock=lambda: now)
    frame = t.Frame(1, 10**9, 1, offsets=b"\0" * 4, nics=(t.NicSamples("eth0", 1, 1, b"\0" * 4, b"\0" * 4),))
    for n in range(500):
        samples.add(f"made-up{n}", frame)
    now = 700.0
    samples.add("node0", frame)
    assert list(samples._rings) == ["node0"]


def test_what_detectors_remember_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MOST", 100)
    latch, growth, rate = windows.Latch(), windows.GrowthWindow(60.0), windows.RateWindow(1.0)
    for n in range(1000):
        latch.see(f"node{n}", True, 1.0, 5.0)
        growth.see(f"node{n}", 1.0, 1.0)
        rate.see(f"node{n}", 1.0, 1.0)
    assert len(latch._states) == len(growth._counters) == len(rate._speeds) == 100
    assert "node999" in latch._states


def test_names_of_spans_are_bounded() -> None:
    """A program that makes up a name a span, on every rank: beyond a bound they are "other"."""
    row = ROW.pack(0, 1, 2, 0, 0, 0, 1, 0, 0, 0, 0, -1)
    parts = [
        (0, msg.WorkerSpans(rank, 1, 1, 0, 0, 0, ("", f"kind{rank}"), pack(row), "j1")) for rank in range(5_000)
    ]  # fmt: skip
    table = span_table.decode(parts)
    assert len(table) == 5_000
    assert len(table.kinds) <= span_table.MAX_KINDS + 1
    assert table.kinds[table.kind[4_999]] == "other"
    assert table.kinds[table.kind[5]] == "kind5"
    window = SpanWindows(100_000)
    window.begin("j1")
    for _, part in parts[:1000]:
        window.add("node0", msg.Spans((part,), 0, 0))
    assert sum(memory_of(part) for part in window.of("j1")._parts) <= 100_000


def test_steps_of_spans_may_be_any_numbers() -> None:
    """Their range is no size of a table: two billion of them were 8 GB."""
    rows = b"".join(ROW.pack(0, 1, 2, 0, step, 0, 1, 0, 0, 0, 0, -1) for step in (-(1 << 31), 0, (1 << 31) - 1))
    parts = [(0, msg.WorkerSpans(0, generation, 3, 0, 0, 0, ("", "a"), pack(rows))) for generation in (1, 2)]
    assert span_table.decode(parts).newest_generation().generation.tolist() == [2, 2, 2]


@pytest.mark.parametrize("text", ["0-999999999", "0-999999,0-999999", "1000000", "99999999999999999999", "0-5/0", "٣"])
def test_a_set_of_ranks_is_no_larger_than_a_job(text: str) -> None:
    with pytest.raises(ValueError, match=r"ranks|zero"):
        rank_sets.expand(text)


def test_who_reads_the_log_slowly_holds_no_more_than_a_few_megabytes() -> None:
    async def story() -> None:
        hub = LogHub()
        hub.begin("j1")
        hub.add(msg.LogChunk("j1", 1, 0, "out", "first"))
        lines = hub.lines("j1")
        assert (await anext(lines))["text"] == "first"
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0)
        for n in range(100):
            hub.add(msg.LogChunk("j1", 1, 0, "out", f"{n}".ljust(1 << 20)))
        (listener,) = hub._jobs["j1"].listeners
        assert listener.held <= 9 << 20
        assert listener.qsize() <= 8
        assert (await waiting)["text"].split()[0] in {"0", *(str(n) for n in range(90, 100))}
        hub.end("j1")
        rest = [line["text"].split()[0] async for line in lines]
        assert rest[-1] == "99"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("nnodes", "nproc", "says"),
    [
        (MAX_RANKS + 1, 1, "a job has 262,144 workers at most, not 262145 x 1: give fewer nnodes or nproc_per_node"),
        (1001, 1000, "not 1001 x 1000"),
        (10**400, 10**400, "a job has 262,144 workers at most"),
        (0, 1, "at least 1 node"),
    ],
)
def test_a_job_of_a_size_that_cannot_be(nnodes: int, nproc: int, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        check_size(JobSpec("j1", "job", msg.Program("x"), nnodes, nproc))
    assert len(str(caught.value)) < 200
    check_size(JobSpec("j1", "job", msg.Program("x"), MAX_RANKS // 8, 8))
