"""The view of one process shows whether it is busy, idle or held; and ten healthy cases that look dead."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnostics.hang.stillness import STILL, Liveness, look
from holdfast.wire import types as t


def seen(quiet: float = 5.0, state: str = "S", **more: object) -> t.Activity:
    return t.Activity(watched=5.0, quiet=quiet, state=state, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("activity", "text"),
    [
        (seen(0.0, written=212e6), "writes 212 MB/s"),
        (seen(0.1, read=45e6, cpu=0.3), "reads 45 MB/s"),
        (seen(0.1, network=3e6), "moves 3 MB/s over the network"),
        (seen(0.0, "R", cpu=1.0), "computes (1.00 cores)"),
        (seen(0.0, children_cpu=0.98, waits_for="its child tar (pid 7)"), "its child tar (pid 7), which computes"),
        (seen(0.0, written=16e6, thread="saver", waits_for="a lock"), "while its main thread waits for a lock"),
        (seen(is_prompt=True), "the prompt of a terminal or a debugger"),
        (seen(state="t", is_prompt=True), "the prompt of a terminal or a debugger"),
        (seen(0.2, has_gpu=True, cpu=1.0, gpu=t.GpuUse.WORKS), "its GPU, which works"),
        (seen(0.3, waits_for="a timer"), "moved 0.3 s ago and waits for a timer"),
    ],
)
def test_honest_things_are_busy_even_while_the_interpreter_does_not_run(activity: t.Activity, text: str) -> None:
    sight = look(activity, silent=True)
    assert sight.life is Liveness.BUSY
    assert text in sight.text


@pytest.mark.parametrize(
    ("activity", "stopped", "holder", "text"),
    [
        (seen(state="T"), False, "", "is stopped"),
        (None, True, "", "is stopped"),
        (seen(state="t"), False, "gdb (pid 7) traces it", "is held: gdb (pid 7) traces it"),
        (seen(0.1, "t"), True, "gdb (pid 7) traces it", "is held: gdb (pid 7) traces it"),
        (seen(state="D", waits_for=t.FROZEN), False, "", "is frozen by the cgroup freezer"),
        (
            seen(),
            False,
            "the cgroup freezer (/sys/fs/cgroup/job7)",
            "is held: the cgroup freezer (/sys/fs/cgroup/job7)",
        ),
    ],
)
def test_what_somebody_holds_is_neither_dead_nor_idle(
    activity: t.Activity | None, stopped: bool, holder: str, text: str
) -> None:
    sight = look(activity, stopped=stopped, holder=holder)
    assert sight.life is Liveness.HELD
    assert text in sight.text


def test_a_debugger_at_its_prompt_is_busy_whatever_it_holds() -> None:
    assert look(seen(state="t", is_prompt=True), holder="gdb (pid 7) traces it").life is Liveness.BUSY


@pytest.mark.parametrize(
    ("activity", "silent"),
    [
        (seen(waits_for="a lock"), False),
        (seen(state="D", waits_for="the disk"), True),  # a disk that does not answer, in a call that holds the lock
        (seen(state="R"), True),  # it would run: the host is starved
        (seen(ends_in=5.0), True),  # a native call that sleeps for five seconds
        (seen(state="Z"), False),
        (seen(waits_for="a timer", ends_in=3600.0), True),
        (seen(has_gpu=True, cpu=1.0, gpu=t.GpuUse.WAITS), False),
    ],
)
def test_what_does_not_move_is_idle(activity: t.Activity, silent: bool) -> None:
    assert look(activity, silent=silent).life is Liveness.IDLE


def test_a_worker_whose_events_stand_at_idle_power_waits_as_a_peer_does() -> None:
    """A host thread that spins in CUDA, and a kernel of NCCL that spins on the GPU: neither is a movement."""
    waits = seen(6.0, "R", cpu=1.0, has_gpu=True, gpu=t.GpuUse.WAITS, events_pending=3)
    assert waits.waits_for_gpu
    sight = look(waits)
    assert sight.life is Liveness.IDLE
    assert sight.text == "waits for its GPU, which draws idle power with 3 events pending: it waits for its peers"
    for other in (
        seen(6.0, "R", cpu=1.0, has_gpu=True, gpu=t.GpuUse.WAITS),  # it may have given its GPU nothing
        seen(6.0, "R", cpu=1.0, has_gpu=True, events_pending=3),  # what the GPU does is not reported
        seen(6.0, "R", cpu=1.0, has_gpu=True, gpu=t.GpuUse.WORKS, events_pending=3),
        seen(6.0, "R", cpu=1.0, gpu=t.GpuUse.WAITS, events_pending=3),
    ):
        assert not other.waits_for_gpu
        assert "waits for its peers" not in look(other).text


def test_who_has_begun_fewer_operations_than_its_peers_is_reported_with_them() -> None:
    behind = "by NCCL's count it has begun 640 AllReduce operations as rank 1 of communicator 0xfa, and a peer 641"
    assert look(seen(waits_for="a lock", behind=behind)).text == f"waits for a lock; {behind}"


def test_what_was_not_measured_is_unknown_however_silent() -> None:
    assert look(None, silent=True).life is Liveness.UNKNOWN
    assert look(seen(state=""), silent=True).life is Liveness.UNKNOWN


@given(
    quiet=st.floats(0, STILL, exclude_max=True), state=st.sampled_from("RSD"), silent=st.booleans(),
    ends=st.just(math.nan) | st.floats(0, 1e6), cpu=st.floats(0, 8), has_gpu=st.booleans(),
)  # fmt: skip
def test_whatever_moves_is_busy(quiet: float, state: str, silent: bool, ends: float, cpu: float, has_gpu: bool) -> None:
    activity = seen(quiet, state, ends_in=ends, cpu=cpu, has_gpu=has_gpu)
    assert look(activity, silent=silent).life is Liveness.BUSY
