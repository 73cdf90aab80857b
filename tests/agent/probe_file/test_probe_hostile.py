"""With any bytes in a probe's memory, its agent can read it and send the result."""

import math
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.probe_file import layout
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.agent.stream.span_sender import SpanSender
from holdfast.base import bounds
from holdfast.base.errors import ProtocolError, Unavailable
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.limits import admitted
from tests.agent.support.processes import probed, until

WORDS = (
    layout.WORD_PID, layout.WORD_TICK, layout.WORD_STEPS, layout.WORD_SPANS, layout.WORD_NAMES, layout.WORD_BEGUN,
    layout.WORD_REQUEST, layout.WORD_TICK_THREAD, layout.WORD_MOVED, layout.WORD_UNSEEN, layout.WORD_NO_SLOT,
)  # fmt: skip
LONG = st.sampled_from([-(1 << 63), (1 << 63) - 1, -1, 0, 1, 2047, 2048, 2049, 8193, 1 << 31, 1 << 53, 1 << 62]) | (
    st.integers(-(1 << 63), (1 << 63) - 1)
)
INT = st.sampled_from([-(1 << 31), (1 << 31) - 1, -1, 0, 1]) | st.integers(-(1 << 31), (1 << 31) - 1)
SHORT = st.sampled_from([-(1 << 15), (1 << 15) - 1, -1, 0, 1, 63, 64]) | st.integers(-(1 << 15), (1 << 15) - 1)
DOUBLE = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1.0, 4e38])


def filled(form: struct.Struct) -> st.SearchStrategy[bytes]:
    """The payload of a block, sealed: each number anything that its field can hold."""
    kinds = {"q": LONG, "d": DOUBLE, "h": SHORT, "i": INT, "I": st.integers(0, (1 << 32) - 1)}
    kinds |= {"Q": st.integers(0, (1 << 64) - 1), "H": st.integers(0, (1 << 16) - 1)}
    parts: list[st.SearchStrategy[object]] = []
    count = ""
    for letter in form.format.lstrip("<"):
        if letter.isdigit():
            count += letter
            continue
        if letter != "x":
            parts += [st.binary(max_size=int(count or 1))] if letter == "s" else [kinds[letter]] * int(count or 1)
        count = ""
    return st.tuples(*parts).map(lambda values: layout.seal(form.pack(*values)))


RECORD_FORM = struct.Struct(layout.RECORD_HEAD.format + layout.RECORD_ROW.format.lstrip("<") * layout.RECORD_ROWS)


def at(where: int, form: struct.Struct) -> st.SearchStrategy[tuple[int, bytes]]:
    return filled(form).map(lambda raw: (where, raw))


def ring(where: int, form: struct.Struct, slots: int) -> st.SearchStrategy[tuple[int, bytes]]:
    """A record where a reader looks for it, its index right or not."""
    return st.tuples(st.integers(0, slots - 1) | st.just(0), filled(form), st.booleans()).map(
        lambda drawn: (
            where + drawn[0] * layout.RECORD,
            layout.seal(drawn[0].to_bytes(8, "little") + drawn[1][16:]) if drawn[2] else drawn[1],
        )
    )


WRITES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(WORDS).map(lambda word: 8 * word), LONG.map(struct.Struct("<q").pack)),
        at(layout.AT_STATE, layout.STATE),
        at(layout.AT_OPERATION, layout.OPERATION),
        at(layout.AT_MESH, layout.MESH),
        at(layout.AT_RECORD, RECORD_FORM),
        st.integers(0, 2).flatmap(lambda n: at(layout.AT_OPEN + n * layout.OPEN_STRIDE, layout.OPEN)),
        st.integers(0, 2).flatmap(lambda n: at(layout.AT_PAST + n * layout.PAST_STRIDE, layout.PAST)),
        st.tuples(st.integers(layout.AT_COUNTED, layout.AT_OPEN), st.binary(min_size=1, max_size=9)),
        at(layout.AT_METERS, layout.METERS),
        ring(layout.AT_STEPS, layout.STEP, layout.STEPS),
        ring(layout.AT_SPANS, layout.SPAN, layout.SPANS),
        st.integers(1, 3).flatmap(lambda n: at(layout.AT_GROUPS + n * layout.GROUP_STRIDE + 8, layout.GROUP)),
        st.tuples(
            st.integers(1, 3).map(lambda n: layout.AT_GROUPS + n * layout.GROUP_STRIDE),
            LONG.map(struct.Struct("<q").pack),
        ),
        st.tuples(st.integers(layout.HEADER.size, layout.SIZE - 200), st.binary(min_size=1, max_size=200)),
        st.tuples(st.just(layout.AT_NAMES), st.binary(min_size=1, max_size=layout.NAME * 4)),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@contextmanager
def made() -> Iterator[tuple[int, ProbeReader, str]]:
    with TemporaryDirectory(dir="/dev/shm") as folder:
        path = f"{folder}/probe"
        layout.create(path, 3, 2, time.monotonic_ns())
        fd = os.open(path, os.O_RDWR)
        reader = ProbeReader(path)
        try:
            yield fd, reader, path
        finally:
            reader.close()
            os.close(fd)


def look(reader: ProbeReader) -> list[msg.AgentMessage]:
    """What an agent does with a probe at every beat: messages that went over the wire and came back."""
    sent: list[msg.AgentMessage] = []
    sender = SpanSender(lambda: [reader], sent.append, lambda count: None)
    sender.clock.answered(0, 10, 5)
    steps = reader.new_steps()
    sample = reader.sample(time.monotonic_ns())
    sent.append(t.Frame(1, 1, 1, workers=(sample,), steps=tuple(steps)))
    sender.read()
    sender.flush(0, 10)
    refused: dict[str, int] = {}
    back = [admitted(wire.decode_agent(wire.encode_agent(message)), refused) for message in sent]
    assert refused == {}, "the reader lets through what a controller refuses"
    return back


@settings(max_examples=80, deadline=None)
@given(WRITES, WRITES)
def test_whatever_is_written_there_a_frame_can_be_sent(
    first: list[tuple[int, bytes]], then: list[tuple[int, bytes]]
) -> None:
    with made() as (fd, reader, _):
        for writes in (first, then):
            for where, raw in writes:
                os.pwrite(fd, raw[: layout.SIZE - where], where)
            frame, *_ = look(reader)
            assert isinstance(frame, t.Frame)
            assert [sample.rank for sample in frame.workers] == [3]
            for sample in frame.workers:
                assert -1 <= sample.step <= bounds.MAX_STEP
                assert 0 <= sample.pid <= bounds.MAX_PID
                assert not sample.progress_age < 0
            for record in frame.steps:
                assert (record.rank, record.generation) == (3, 2)
                assert 0 <= record.seconds <= bounds.MAX_SECONDS
                assert 0 <= record.tokens <= bounds.MAX_TOKENS
                assert record.end_wall_ns <= time.time_ns()


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=2000, max_size=4000), st.integers(0, 1 << 20))
def test_noise_all_over_the_file(noise: bytes, offset: int) -> None:
    with made() as (fd, reader, _):
        for where in range(layout.HEADER.size, layout.SIZE - len(noise), len(noise) + offset % 977):
            os.pwrite(fd, noise, where)
        for _ in range(2):
            look(reader)


@pytest.mark.parametrize("size", [0, 100, 5000, layout.AT_SPANS + 10])
def test_a_file_that_is_cut_short_under_the_reader_is_no_end_of_the_agent(size: int) -> None:
    """A mapping would be a SIGBUS."""
    with made() as (_, reader, path):
        look(reader)
        os.truncate(path, size)
        frame, *_ = look(reader)
        assert isinstance(frame, t.Frame)
        assert frame.steps == ()


@pytest.mark.parametrize(("rank", "generation"), [(-1, 1), (1, -1), (bounds.MAX_RANKS, 1)])
def test_a_header_of_no_worker_is_refused(rank: int, generation: int, tmp_path: Path) -> None:
    layout.create(str(tmp_path / "p"), rank, generation, 1)
    with pytest.raises(ProtocolError, match="damaged: it is for rank"):
        ProbeReader(str(tmp_path / "p"))


def test_a_pipe_or_a_link_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ProtocolError, match="no probe file"):
        ProbeReader(str(tmp_path / "pipe"))
    for name in ("link", "folder"):
        with pytest.raises(Unavailable, match="cannot open the probe file"):
            ProbeReader(str(tmp_path / name))


def test_a_script_that_says_what_cannot_be_is_clamped_and_goes_on(tmp_path: Path) -> None:
    code = """
for n, tokens in ((-5, -7), (1 << 70, 1 << 62), (3, 1 << 90)):
    probe.step(n, loss=1.0, tokens=tokens)
with probe.span("forward", stage=1 << 40, micro_batch=1 << 40, seq=-(1 << 50), num_bytes=1 << 80):
    pass
probe.mesh(pp=1 << 40, sizes=(1 << 41, 1, 1))
probe.meters(1.0, 1.0, [0.0] * 5, 1 << 80)
print("said", flush=True)
input()
"""
    with probed(code, tmp_path / "p") as (process, reader):
        assert process.stdout
        assert process.stdout.readline() == "said\n", process.stderr and process.stderr.read()
        until(lambda: reader.sample(time.monotonic_ns()).step == 3)
        records = reader.new_steps()
        assert [(r.step, r.tokens) for r in records] == [
            (0, 0), (bounds.MAX_STEP, bounds.MAX_TOKENS), (3, bounds.MAX_TOKENS)
        ]  # fmt: skip
        (span,) = reader.new_spans()
        assert (span.kind, span.stage, span.seq) == ("forward", (1 << 15) - 1, -1)
        assert reader.sample(time.monotonic_ns()).coordinate is None


WRONG = """
import math

class Odd:
    def raises(self, *_):
        raise RuntimeError("no")
    __int__ = __float__ = __index__ = __bool__ = __str__ = __eq__ = __lt__ = __hash__ = raises

values = [2.5, -2.5, math.nan, math.inf, -math.inf, "3", "x", b"x", None, True, [], {}, (1, 2), 1j]
values += [Odd(), 10**400, object]
"""


def test_no_value_of_a_wrong_type_is_an_error_in_the_script(tmp_path: Path) -> None:
    """A float for tokens was a struct.error in the middle of training."""
    code = f"""{WRONG}
probe.phase("train")
for value in values:
    probe.step(value)
    probe.step(1, loss=value, tokens=value)
    with probe.operation(value), probe.span(value, value, value, value, value, value, value, value):
        pass
    with probe.span("forward", num_bytes=value, group=value, seq=value, cpu=value):
        pass
    probe.record(value, value, value, stage=value, group=value, cpu_ns=value, step=value)
    probe.mesh(pp=value, sizes=value)
    probe.mesh(pp=1, sizes=(2, 1, value))
    probe.meters(value, value, value, value, value)
    probe.meters(1.0, 1.0, [value] * 5, 1, value)
    probe.restored(value, value, value, value, value)
    probe.publish_plan(value)
    try:
        probe.phase(value)
    except ValueError as error:
        assert "unknown phase" in str(error)
probe.step(7, loss=2.5, tokens=2.9)
print("said", flush=True)
input()
"""
    with probed(code, tmp_path / "p") as (process, reader):
        assert process.stdout
        assert process.stdout.readline() == "said\n", process.stderr and process.stderr.read()
        until(lambda: reader.sample(time.monotonic_ns()).step == 7)
        records = reader.new_steps()
        assert len(records) == 2 * 17 + 1
        assert (records[-1].loss, records[-1].tokens) == (2.5, 2)
        assert {record.step for record in records[1::2]} == {1}
        assert [record.step for record in records[0:12:2]] == [2, 0, 2, bounds.MAX_STEP, 0, 3]
        assert reader.new_spans()


def test_a_step_is_counted_whatever_its_number_is_called(tmp_path: Path) -> None:
    code = f"""{WRONG}
probe.step(4)
for value in (None, "x", math.nan, Odd()):
    probe.step(value, loss=value)
print("said", flush=True)
input()
"""
    with probed(code, tmp_path / "p") as (process, reader):
        assert process.stdout
        assert process.stdout.readline() == "said\n", process.stderr and process.stderr.read()
        until(lambda: reader.sample(time.monotonic_ns()).step == 8)
        records = reader.new_steps()
        assert [record.step for record in records] == [4, 5, 6, 7, 8]
        assert [str(record.loss) for record in records] == ["nan", "nan", "nan", "inf", "nan"]
