"""Agents' streams, for real: a gRPC server, real links, and a wire that breaks."""

import asyncio
import contextlib
import logging
import random
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.controller.state.events import AgentJoined, AgentLeft, EventSeen, FrameSeen, Record, ResultSeen
from holdfast.controller.state.incidents import Incident
from holdfast.controller.state.ledger import StepRow
from holdfast.controller.state.model import Job, JobSpec, Options
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.stage import agent, eventually, stage, wire_to, with_job


def notice(n: int) -> t.AgentNotice:
    return t.AgentNotice(n, "test", t.Severity.INFO, str(n))


def test_who_joins_is_known_and_who_leaves_is_missed(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here:
            async with agent(here.port) as one:
                await eventually(lambda: one.link.connected)
                one.beat()
                await eventually(lambda: here.brain.of(FrameSeen))
                assert list(here.shell.sessions.by_node) == ["node0"]
                assert here.brain.c.nodes["node0"].connected
            await eventually(lambda: here.brain.of(AgentLeft))
            assert here.shell.sessions.by_node == {}
            assert not here.brain.c.nodes["node0"].connected

    asyncio.run(story())


def test_commands_go_down_and_answers_come_up(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port) as one:
            await eventually(lambda: "node0" in here.shell.sessions.by_node)
            command = msg.Command("c1", "j1", 1, msg.StopWorkers(2.5))
            here.shell.send("node0", command)
            await eventually(lambda: one.commands)
            assert one.commands == [command]
            for ok in (True, False):
                one.link.send(msg.CommandResult("c1", ok, "" if ok else "no", {"stopped": "4"}))
            await eventually(lambda: len(here.brain.of(ResultSeen)) == 2)
            assert here.brain.of(ResultSeen)[0] == ResultSeen(
                "node0", msg.CommandResult("c1", True, "", {"stopped": "4"})
            )
            assert here.shell.sessions.received.commands == {"ok": 1, "error": 1}

    asyncio.run(story())


def test_whatever_breaks_each_event_and_each_frame_is_taken_once(tmp_path: Path) -> None:
    """The wire is cut again and again in the middle of talking."""
    rng = random.Random(7)
    total = 300

    async def story() -> None:
        async with stage(tmp_path) as here, wire_to(here.port) as wire, agent(wire.port) as one:
            for n in range(total):
                one.report(notice(n))
                one.beat(n)
                if wire.cuts < 5 and rng.random() < 0.04:
                    await eventually(lambda: one.link.connected)
                    wire.cut()
                if rng.random() < 0.1:
                    here.shell.flush_steps()
                await asyncio.sleep(rng.choice([0, 0, 0.001, 0.005]))
            await eventually(lambda: len(here.brain.of(EventSeen)) >= total, lambda: len(here.brain.of(EventSeen)))
            await eventually(lambda: len(here.brain.of(FrameSeen)) >= total, lambda: len(here.brain.of(FrameSeen)))
            assert wire.cuts == 5
            assert [seen.event for seen in here.brain.of(EventSeen)] == [notice(n) for n in range(total)]
            assert [seen.frame.steps[0].step for seen in here.brain.of(FrameSeen)] == list(range(total))
            here.shell.flush_steps()
            await eventually(lambda: one.durable == [notice(n) for n in range(total)])
            # Frames are acknowledged when what they brought is on disk, at the next flush after a pause.
            one.beat()
            await eventually(lambda: here.shell.sessions.received.frames == total + 1)

            def is_all_acknowledged() -> bool:
                here.shell.flush_steps()
                return not one.outbox.unacknowledged()

            await eventually(is_all_acknowledged, one.outbox.unacknowledged)

    asyncio.run(story())


def test_a_controller_that_starts_again_hears_what_the_last_one_had_not_written(tmp_path: Path) -> None:
    async def story() -> None:
        async with wire_to(0) as wire, agent(wire.port) as one:
            async with stage(tmp_path / "a") as first:
                wire.target = first.port
                await eventually(lambda: one.link.connected)
                one.report(notice(0))
                await eventually(lambda: one.durable == [notice(0)])
                one.beat(0)  # seen, but never flushed
                await eventually(lambda: first.shell.sessions.received.frames == 1)
                wire.cut()
            await eventually(lambda: not one.link.connected)
            one.report(notice(1))
            one.beat(1)
            async with stage(tmp_path / "b") as second:
                wire.target = second.port
                await eventually(lambda: len(second.brain.of(FrameSeen)) == 2)
                assert [seen.frame.steps[0].step for seen in second.brain.of(FrameSeen)] == [0, 1]
                assert [seen.event for seen in second.brain.of(EventSeen)] == [notice(1)]
                wire.cut()

    asyncio.run(story())


def test_a_broken_stream_resumes_and_repeats_nothing(tmp_path: Path) -> None:
    """What was received but is not durable stays with the agent, and is no news when it comes again."""

    async def story() -> None:
        async with stage(tmp_path) as here, wire_to(here.port) as wire, agent(wire.port) as one:
            await eventually(lambda: one.link.connected)
            one.beat(0)
            await eventually(lambda: here.shell.sessions.received.frames == 1)
            assert len(one.outbox.unacknowledged()) == 1
            joined = len(here.brain.of(AgentJoined))
            wire.cut()
            await eventually(lambda: len(here.brain.of(AgentJoined)) == joined + 1)
            one.beat(1)
            await eventually(lambda: here.shell.sessions.received.frames == 2)
            assert [seen.frame.steps[0].step for seen in here.brain.of(FrameSeen)] == [0, 1]

    asyncio.run(story())


def test_an_event_is_acknowledged_after_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port) as one:
            await eventually(lambda: one.link.connected)
            seen: list[int] = []
            write = here.shell.journal.write

            def watched(records: Iterable[Record], at: float) -> None:
                seen.append(len(one.durable))
                write(records, at)

            monkeypatch.setattr(here.shell.journal, "write", watched)
            warning = t.AgentNotice(1, "test", t.Severity.WARNING, "a warning becomes an incident, which is recorded")
            one.report(warning)
            await eventually(lambda: one.durable == [warning])
            assert seen == [0]
            rows = sqlite3.connect(tmp_path / "controller.sqlite").execute("SELECT kind FROM entity").fetchall()
            assert rows == [("incident",)]

    asyncio.run(story())


def test_frames_are_not_acknowledged_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port) as one:
            await eventually(lambda: one.link.connected)
            acks: list[float] = []
            monkeypatch.setattr(here.shell.sessions, "acknowledge", acks.append)
            one.beat(0)
            await eventually(lambda: here.shell.sessions.received.frames == 1)

            def full(*_: object) -> None:
                raise sqlite3.OperationalError("database or disk is full")

            with_job(here.brain, Job(JobSpec("j1", "job", msg.Program("x"), 1, 1)))
            here.brain.jobs.newest.c.ledger.rows[0] = StepRow(0, 1.0, 0.1, 1, 1.0, 1)
            here.brain.jobs.newest.c.ledger.dirty.add(0)
            with monkeypatch.context() as patch:
                patch.setattr(here.shell.journal, "write_steps", full)
                here.shell.flush_steps()
                assert acks == []
                assert here.brain.jobs.newest.c.ledger.dirty == {0}
            here.shell.flush_steps()
            assert acks == [here.brain.c.heartbeat_interval]
            assert [row.step for row in here.shell.journal.steps("j1")] == [0]

    asyncio.run(story())


def test_a_name_that_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By an agent of another host: refused with the name of the other; the one that was there notices nothing."""
    caplog.set_level(logging.INFO, "holdfast")
    incidents: list[Incident] = []

    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port) as first:
            await eventually(lambda: first.link.connected)
            async with agent(here.port, hostname="elsewhere", incarnation="i2") as second:
                await eventually(lambda: here.shell.sessions.received.refused["name"] >= 1)
                await asyncio.sleep(0.05)
                assert not second.link.connected
            first.beat()
            await eventually(lambda: here.shell.sessions.received.frames == 1)
            incidents.extend(here.brain.c.book.incidents.values())
            assert first.link.connected
            assert len(here.brain.of(AgentJoined)) == 1

    asyncio.run(story())
    reasons = {record.fields["reason"] for record in caplog.records if record.message == "controller.away"}  # type: ignore[attr-defined]
    assert reasons == {
        "the controller refuses: the node name 'node0' is used by an agent on host (127.0.0.1): "
        "give another --node-name, or end that one"
    }
    reported = [i for i in incidents if i.cause.kind is t.FindingKind.NODE_NAME_TAKEN]
    assert [i.cause.text for i in reported] == [
        "node0 is the agent on host (127.0.0.1); an agent on elsewhere (127.0.0.1) uses the same name and is refused"
    ]
    assert reported[0].cause.evidence["newcomer"]["incarnation"] == "i2"


def test_an_agent_that_was_started_again_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same host, new incarnation: the stream that still looks alive is the dead one's."""
    monkeypatch.setattr("holdfast.controller.shell.claims.FRESH_S", 3600.0)  # not because the other is silent

    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port) as old:
            await eventually(lambda: old.link.connected)
            old.beat()
            await eventually(lambda: here.shell.sessions.received.frames == 1)
            async with agent(here.port, incarnation="i2", predecessors=("i0", "i1")) as new:
                await eventually(lambda: here.shell.sessions.by_node["node0"].incarnation == "i2")
                new.report(notice(1))
                await eventually(lambda: here.brain.of(EventSeen))
                assert here.brain.of(EventSeen) == [EventSeen("node0", notice(1))]

    asyncio.run(story())


def test_who_speaks_another_protocol_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port, protocol_min=4, protocol_max=5) as one:
            await eventually(lambda: here.shell.sessions.received.malformed)
            assert not one.link.connected
            assert here.brain.c.nodes == {}

    asyncio.run(story())


def test_the_controller_sets_the_pace(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port) as one:
            await eventually(lambda: one.link.connected)
            assert one.link.heartbeat_interval == here.brain.c.heartbeat_interval == Options().heartbeat_interval

    asyncio.run(story())


def test_log_lines_reach_the_hub(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port) as one:
            here.shell.logs.begin("j1")
            await eventually(lambda: one.link.connected)
            one.link.send(msg.LogChunk("j1", 1, 2, "out", "hello"))
            async with asyncio.timeout(30):
                line = await anext(here.shell.logs.lines("j1"))
            assert (line["rank"], line["text"]) == (2, "hello")

    asyncio.run(story())


def test_no_agent_speaks_as_another_nodes_rank_nor_pushes_its_lines_out(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port) as one, agent(here.port, "node1", "host1", "i2") as other:
            await eventually(lambda: one.link.connected and other.link.connected)
            with_job(
                here.brain, Job(JobSpec("j1", "job", msg.Program("x"), 2, 4), generation=1, nodes=["node0", "node1"])
            )
            here.shell.logs.begin("j1")
            one.link.send(msg.LogChunk("j1", 1, 3, "out", "mine"))
            await eventually(lambda: list(here.shell.logs._jobs["j1"].tail))
            for _ in range(30):
                other.link.send(msg.LogChunk("j1", 1, 3, "out", "x" * 100_000))
            await eventually(lambda: here.shell.sessions.received.refused["foreign"] == 30)
            here.shell.logs.end("j1")
            assert [line["text"] async for line in here.shell.logs.lines("j1")] == ["mine"]
            kinds = {i.cause.kind: i.cause.subject for i in here.brain.c.book.incidents.values()}
            assert kinds == {t.FindingKind.INPUT_REFUSED: "node1"}

    asyncio.run(story())


def test_a_second_agent_of_the_same_host_waits_until_the_first_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has another state folder: nothing says that the first is gone. No ping-pong; one finding names both."""
    monkeypatch.setattr("holdfast.controller.shell.claims.FRESH_S", 3600.0)
    monkeypatch.setattr("holdfast.controller.shell.claims.FRESH_BEATS", 0.0)
    monkeypatch.setattr("holdfast.controller.shell.ingest.RETRY_S", 0.1)

    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port) as first:
            await eventually(lambda: first.link.connected)
            async with agent(here.port, incarnation="i2") as second:
                await eventually(lambda: here.shell.sessions.received.refused["name"] >= 3)
                holder = here.shell.sessions.by_node["node0"]
                heard_at = holder.heard_at
                first.beat()
                await eventually(lambda: holder.heard_at > heard_at)  # by which its silence is measured
                assert not second.link.connected
                assert len(here.brain.of(AgentJoined)) == 1
                kinds = [i.cause.kind for i in here.brain.c.book.incidents.values()]
                assert kinds == [t.FindingKind.NODE_NAME_TAKEN]
                monkeypatch.setattr("holdfast.controller.shell.claims.FRESH_S", 0.5)
                await eventually(lambda: second.link.connected)  # the first is silent now: half an open connection
                assert here.shell.sessions.by_node["node0"].incarnation == "i2"

    asyncio.run(story())


def test_a_command_that_no_message_can_hold_is_answered_as_failed(tmp_path: Path) -> None:
    """It ended the writing side of the stream: no command reached that agent any more."""

    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port) as one:
            await eventually(lambda: "node0" in here.shell.sessions.by_node)
            here.shell.send("node0", msg.Command("c1", "j1", -1, msg.StopWorkers(2.5)))
            await eventually(lambda: here.brain.of(ResultSeen))
            (seen,) = here.brain.of(ResultSeen)
            assert (seen.result.id, seen.result.ok) == ("c1", False)
            assert "the command cannot be sent: ValueError" in seen.result.error
            here.shell.send("node0", msg.Command("c2", "j1", 1, msg.StopWorkers(2.5)))
            await eventually(lambda: [command.id for command in one.commands] == ["c2"])

    asyncio.run(story())


def test_a_writer_that_ends_ends_its_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agent.stream.link._WELCOME_TIMEOUT", 3600.0)  # it is not the agent that gives up

    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port) as one:
            await eventually(lambda: one.link.connected)
            session = here.shell.sessions.by_node["node0"]
            write, joined = here.ingest._write, len(here.brain.of(AgentJoined))

            async def ends(context: object, session: object) -> None:
                raise RuntimeError("a bug in the writer")

            with monkeypatch.context() as patch:
                patch.setattr(here.ingest, "_write", ends)
                one.link._stalled.set()  # the next stream has the writer that ends
                await eventually(lambda: len(here.brain.of(AgentJoined)) > joined)
            assert here.ingest._write == write

            def is_another() -> bool:
                return one.link.connected and here.shell.sessions.by_node.get("node0") not in (None, session)

            await eventually(is_another)
            here.shell.send("node0", msg.Command("c1", "j1", 1, msg.StopWorkers(2.5)))
            await eventually(lambda: one.commands)

    asyncio.run(story())


def test_a_long_message_comes_in_pieces(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port) as one:
            await eventually(lambda: one.link.connected)
            plan = t.PlanPublished("j1", 1, bytes(range(256)) * (20 << 12))
            one.report(plan)
            one.report(notice(1))
            await eventually(lambda: len(here.brain.of(EventSeen)) == 2)
            assert [seen.event for seen in here.brain.of(EventSeen)] == [plan, notice(1)]
            assert here.shell.sessions.received.malformed == 0

    asyncio.run(story())


def test_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.controller.shell.ingest.MOST_STREAMS", 3)

    async def story() -> None:
        async with stage(tmp_path) as here, contextlib.AsyncExitStack() as all_of_them:
            agents = [
                await all_of_them.enter_async_context(agent(here.port, f"n{n}", f"h{n}", f"i{n}")) for n in range(3)
            ]
            await eventually(lambda: all(one.link.connected for one in agents))
            async with agent(here.port, "late", "h9", "i9") as late:
                await asyncio.sleep(1.0)  # several attempts
                assert not late.link.connected
                await all_of_them.aclose()
                await eventually(lambda: late.link.connected)

    asyncio.run(story())
