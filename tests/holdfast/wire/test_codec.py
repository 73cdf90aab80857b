"""Every message survives the wire unchanged, and nonsense is refused in one line."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import ProtocolError
from holdfast.proto import controller_pb2 as c
from holdfast.proto import types_pb2 as p
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.standing import OpenOperation, PastOperation, StallFacts, ThreadSight, ThreadState

FINITE = st.floats(width=32, allow_nan=False)
TEXT = st.text(max_size=20)
U32 = st.integers(0, 2**32 - 1)
TRIPLE = st.none() | st.tuples(*[st.integers(0, 4096)] * 3)
METERS = st.builds(
    t.Meters, mfu=FINITE, tokens_per_s=FINITE, parts=st.tuples(*[FINITE] * len(t.STEP_PARTS)),
    memory_bytes=st.integers(0, 2**63), grad_norm=FINITE,
)  # fmt: skip
GROUP = st.builds(
    t.GroupCount, label=TEXT, ident=U32, members=TEXT, begun=st.integers(0, 2**60), sizes=U32,
    is_exact=st.booleans(),
)  # fmt: skip
THREAD = st.builds(
    ThreadSight, tid=U32, state=st.sampled_from(ThreadState), seconds=FINITE, ends_in=FINITE, words=TEXT, count=U32
)


ACTIVITY = st.builds(
    t.Activity,
    watched=FINITE, quiet=FINITE, state=st.sampled_from(["", "R", "T"]), waits_for=TEXT, ends_in=FINITE,
    is_prompt=st.booleans(), gpu=st.sampled_from(t.GpuUse), events_pending=st.integers(0, 2**63), behind=TEXT,
)  # fmt: skip


@st.composite
def standings(draw: st.DrawFn) -> t.PendingCollective:
    groups = tuple(draw(st.lists(GROUP, max_size=3)))
    group = draw(st.integers(-1, len(groups) - 1))
    return t.PendingCollective(
        draw(TEXT), group, draw(st.integers(-1, 2**60)), draw(st.booleans()), groups, draw(st.integers(0, 2**31 - 1))
    )


@st.composite
def workers(draw: st.DrawFn) -> t.WorkerSample:
    """One whose open operations are of groups that it has."""
    worker = draw(WORKER)
    groups = len(worker.pending.groups) if worker.pending is not None else 0
    operation = st.builds(
        OpenOperation, thread=U32, kind=TEXT, group=st.integers(0, max(groups - 1, 0)), number=st.integers(0, 2**60),
        size=U32, root=st.integers(-1, 2**31 - 1), is_timed=st.booleans(),
    )  # fmt: skip
    past = st.builds(
        PastOperation, kind=TEXT, group=st.integers(0, max(groups - 1, 0)), number=st.integers(0, 2**60),
        root=st.integers(-1, 2**31 - 1), size=U32,
    )  # fmt: skip
    standing = StallFacts(
        tuple(draw(st.lists(THREAD, max_size=3))), tuple(draw(st.lists(operation, max_size=3 if groups else 0))),
        draw(st.booleans()), draw(TEXT), tuple(draw(st.lists(past, max_size=3 if groups else 0))),
    )  # fmt: skip
    return worker._replace(standing=draw(st.none() | st.just(standing)))


WORKER = st.builds(
    t.WorkerSample, rank=U32, generation=U32, pid=U32, step=st.integers(-1, 2**40), phase=st.sampled_from(t.Phase),
    operation=TEXT, operation_age=FINITE, progress_age=FINITE, tick_age=FINITE, stopped=st.booleans(), loss=FINITE,
    tokens=st.integers(0, 2**40), median_step=FINITE, coordinate=TRIPLE, sizes=TRIPLE,
    meters=st.none() | METERS, still_age=FINITE, pending=st.none() | standings(), activity=st.none() | ACTIVITY,
    job=st.just(""), standing=st.none(), left=st.booleans(),
)  # fmt: skip
STEP = st.builds(
    t.StepRecord, rank=U32, generation=U32, step=st.integers(-1, 2**40), end_wall_ns=st.integers(0, 2**63),
    seconds=FINITE, loss=FINITE, tokens=st.integers(0, 2**40), is_counted=st.booleans(),
)  # fmt: skip
EXIT = st.builds(
    t.WorkerExited, job=TEXT, generation=U32, rank=U32, pid=U32, wall_ns=st.integers(0, 2**63),
    code=st.integers(-1, 255), signal=st.integers(0, 64), core_dumped=st.booleans(), oom_killed=st.booleans(),
    error=TEXT, tail=TEXT, ordered=st.booleans(),
)  # fmt: skip


@st.composite
def frames(draw: st.DrawFn) -> t.Frame:
    n = draw(st.integers(0, 5))
    column = st.binary(min_size=4 * n, max_size=4 * n)
    nic = st.builds(
        t.NicSamples,
        name=TEXT,
        tx_total=st.integers(0, 2**63),
        rx_total=st.integers(0, 2**63),
        tx=column,
        rx=column,
    )
    return t.Frame(
        seq=draw(st.integers(0, 2**60)), wall_ns=draw(st.integers(0, 2**63)), mono_ns=draw(st.integers(0, 2**63)),
        offsets=draw(column), nics=tuple(draw(st.lists(nic, max_size=3))),
        host=draw(st.dictionaries(TEXT, FINITE, max_size=3)),
        gpus=tuple(t.GpuGauges(i, {"power": 1.5}) for i in range(draw(st.integers(0, 3)))),
        workers=tuple(draw(st.lists(workers(), max_size=4))), steps=tuple(draw(st.lists(STEP, max_size=4))),
        heartbeat_interval=draw(FINITE),
    )  # fmt: skip


@given(frames())
def test_a_frame_survives_the_wire(frame: t.Frame) -> None:
    assert wire.decode_agent(wire.encode_agent(frame)) == frame


def test_an_older_agent_counts_no_steps() -> None:
    frame = c.Frame(
        steps=p.Steps(rank=[1], generation=[1], step=[4], end_wall_ns=[7], seconds=[0.5], loss=[1.0], tokens=[0])
    )
    back = wire.decode_agent(c.AgentMessage(frame=frame).SerializeToString())
    assert isinstance(back, t.Frame)
    assert back.steps == (t.StepRecord(1, 1, 4, 7, 0.5, 1.0, 0, False),)


def test_an_older_agent_counts_no_events_and_asks_no_ras() -> None:
    activity = t.Activity(5.0, 4.0, "R", cpu=1.0, ends_in=1.0, has_gpu=True)
    frame = t.Frame(1, 2, 3, workers=(t.WorkerSample(0, 1, 9, activity=activity),))
    message = c.AgentMessage.FromString(wire.encode_agent(frame))
    for name in ("events_pending", "behind"):
        message.frame.workers.activity.ClearField(name)
    back = wire.decode_agent(message.SerializeToString())
    assert isinstance(back, t.Frame)
    assert back.workers[0].activity == activity
    message.frame.workers.activity.behind.extend(["x", "y"])
    with pytest.raises(ProtocolError, match="columns of activity"):
        wire.decode_agent(message.SerializeToString())


def test_an_older_agent_says_nothing_of_what_is_over() -> None:
    pending = t.PendingCollective(groups=(t.GroupCount("world", 1, "0-1", 5),))
    standing = StallFacts(past=(PastOperation("broadcast", 0, 4, 1),))
    sample = t.WorkerSample(0, 1, 9, pending=pending, standing=standing)
    message = c.AgentMessage.FromString(wire.encode_agent(t.Frame(1, 2, 3, workers=(sample,))))
    columns = message.frame.workers.standing
    columns.past_group[0] = 1
    with pytest.raises(ProtocolError, match="a group that its worker lacks"):
        wire.decode_agent(message.SerializeToString())
    columns.past_group[0] = 0
    columns.ClearField("past_size")
    back = wire.decode_agent(message.SerializeToString())
    assert isinstance(back, t.Frame)
    assert back.workers[0].standing == standing
    columns.ClearField("past")
    with pytest.raises(ProtocolError, match="columns of past operations"):
        wire.decode_agent(message.SerializeToString())
    for name in ("past_kind", "past_group", "past_number", "past_root"):
        columns.ClearField(name)
    back = wire.decode_agent(message.SerializeToString())
    assert isinstance(back, t.Frame)
    assert back.workers[0].standing == StallFacts()


def test_not_a_number_survives_as_itself() -> None:
    frame = t.Frame(1, 2, 3, workers=(t.WorkerSample(rank=0, generation=1, pid=9),))
    back = wire.decode_agent(wire.encode_agent(frame))
    assert isinstance(back, t.Frame)
    (worker,) = back.workers
    assert math.isnan(worker.loss)
    assert math.isnan(worker.progress_age)
    assert worker.coordinate is None


@given(EXIT, st.integers(0, 2**60))
def test_an_exit_survives_the_wire(event: t.WorkerExited, seq: int) -> None:
    assert wire.decode_agent(wire.encode_agent(msg.Numbered(seq, event))) == msg.Numbered(seq, event)


IDENTITY = t.Identity(
    node="n0", hostname="h", incarnation="abc", ips=("10.0.0.1",), pod=t.Pod("p", "ns", "u"),
    gpus=(t.Gpu(0, "GPU-1", "H200", "0000:01:00.0", 5),), nics=(t.Nic("mlx5_0", "rdma", 400, 1, "ACTIVE"),),
    switch="s1", slots=8, versions={"holdfast": "0.1"}, boot_id="b", cpus=2, memory_bytes=7, address="10.0.0.1",
    ping_port=4711,
)  # fmt: skip


@pytest.mark.parametrize(
    "message",
    [
        msg.Hello(IDENTITY, (msg.KeptWorker("j", 2, 3, 1, 99, True),), 1, 2, 5),
        msg.CommandResult("c1", False, "no", {"port": "1"}),
        msg.LogChunk("j", 1, 2, "err", "text", 3),
        msg.Numbered(4, t.LogMatched("j", 1, -1, 7, "xid", "gpu", t.Severity.CRITICAL, "NVRM: Xid")),
        msg.Spans((msg.WorkerSpans(3, 1, 10, 2, 5, 6, ("", "forward"), b"\x00rows"),), -(1 << 60), 1 << 40, 7),
        msg.ClockRequest(1 << 60),
        msg.Numbered(6, t.PlanPublished("j", 2, b"\x00plan")),
        msg.Numbered(7, t.StateRestored("j", 2, 40, "peer", 0.25, 1 << 33, 1 << 34)),
        msg.Numbered(9, t.ImportsTimed("j", 2, 8.25, "torch,lightning")),
        msg.Numbered(8, t.ProgressSeen("j", 2, 0, 7, "checkpoint", -1, 3, "out/step_40.pt")),
        msg.Numbered(5, t.AgentNotice(7, "disk", t.Severity.WARNING, "full")),
    ],
)
def test_agent_messages_survive_the_wire(message: msg.AgentMessage) -> None:
    assert wire.decode_agent(wire.encode_agent(message)) == message


PROGRAM = msg.Program("train.py", ("--a", "1"), False, "/w", {"K": "V"}, False, True, preload=("lightning", "a.b"))


@pytest.mark.parametrize(
    "message",
    [
        msg.Welcome(1, 0.1, 4, 5),
        msg.Ack(1, 2, 0.5),
        msg.Refused("too old"),
        msg.ClockReply(1 << 60, 1 << 61),
        msg.Command("1", "j", 1, msg.StartStore("127.0.0.1")),
        msg.Command("2", "j", 1, msg.StartWorkers(PROGRAM, (msg.Rank(4, 0, 1),), 8, 2, "h", 29500, 3, True)),
        msg.Command("3", "j", 1, msg.StopWorkers(0.0)),
        msg.Command("4", "j", 1, msg.Inject("kill", 3)),
        msg.Command("5", "j", 1, msg.RequestCheckpoint()),
        msg.Command("6", "", 0, msg.RunCheck(("gemm", "disk"), '{"suite": "full"}', 12.5)),
        msg.Command("6", "j", 1, msg.DumpStacks()),
        msg.Command("7", "", 0, msg.ProbePeer("10.0.0.1", 4711)),
    ],
)
def test_controller_messages_survive_the_wire(message: msg.ControllerMessage) -> None:
    assert wire.decode_controller(wire.encode_controller(message)) == message


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff", b"\x0a\x05ab"])
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire.decode_agent(data)
    with pytest.raises(ProtocolError):
        wire.decode_controller(data)


def test_columns_of_unequal_length_are_refused() -> None:
    message = wire.agent_message(t.Frame(1, 2, 3, workers=(t.WorkerSample(rank=0, generation=1, pid=9),)))
    message.frame.workers.step.append(4)
    with pytest.raises(ProtocolError, match="workers"):
        wire.decode_agent(message.SerializeToString())


def test_meters_of_a_worker_that_a_frame_lacks_are_refused() -> None:
    frame = t.Frame(1, 2, 3, workers=(t.WorkerSample(0, 0, 1, meters=t.Meters()),))
    message = wire.agent_message(frame)
    message.frame.workers.meters.worker[0] = 1
    with pytest.raises(ProtocolError, match="lacks"):
        wire.decode_agent(message.SerializeToString())
    message.frame.workers.meters.worker[0] = 0
    del message.frame.workers.meters.parts[0]
    with pytest.raises(ProtocolError, match="parts"):
        wire.decode_agent(message.SerializeToString())


def test_a_phase_from_the_future_is_refused() -> None:
    message = wire.agent_message(t.Frame(1, 2, 3, workers=(t.WorkerSample(rank=0, generation=1, pid=9),)))
    message.frame.workers.phase[0] = 99
    with pytest.raises(ProtocolError, match="phase"):
        wire.decode_agent(message.SerializeToString())


def test_the_protocol_handshake() -> None:
    assert wire.common_protocol(1, 3) == 1
    with pytest.raises(ProtocolError, match="2 to 3"):
        wire.common_protocol(2, 3)
