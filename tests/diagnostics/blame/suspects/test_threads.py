"""Work that lasts longer without more processor time: the host's doing or the rank's own, by what the kernel counts."""

import os
import resource
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from benchmarks.simulated_spans import Culprit, Job, simulate
from holdfast.agent.probe_file.thread_clock import ThreadClock
from holdfast.diagnostics.blame.blame import Blame
from holdfast.diagnostics.blame.model import Slowness
from holdfast.diagnostics.blame.report import blame_of
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import COLUMNS, SpanTable, concatenated, from_columns
from holdfast.wire.plans import encode_plan
from holdfast.wire.span_rows import THREAD

STEPS = 20


def threads(
    table: SpanTable,
    cpu_s: np.ndarray,
    delayed_s: np.ndarray,
    voluntary: np.ndarray | None = None,
    involuntary: np.ndarray | None = None,
) -> SpanTable:
    """Rows of kind THREAD: (ranks,) seconds, and mean context switches, in each step, with some noise."""
    rng = np.random.default_rng(3)
    ranks = len(cpu_s)
    count = STEPS * ranks
    rank, step = np.tile(np.arange(ranks), STEPS), np.repeat(np.arange(STEPS), ranks)
    end = np.array([table.end[(table.rank == r) & (table.step == s)].max() for r, s in zip(rank, step, strict=True)])
    columns = {name: np.zeros(count, getattr(table, name).dtype) for name in COLUMNS}
    columns |= {name: np.full(count, -1, getattr(table, name).dtype) for name in ("stage", "micro_batch", "seq")}
    columns |= {"rank": rank.astype(np.int32), "step": step.astype(np.int32), "start": end, "end": end}
    columns["generation"] = np.full(count, 1, np.int32)
    noise = rng.lognormal(0, 0.1, count)
    columns["cpu"] = (cpu_s[rank] * 1e9).astype(np.int64)
    delayed = delayed_s[rank]
    columns["bytes"] = np.where(delayed < 0, -1, delayed * noise * 1e9).astype(np.int64)
    for name, switches in (("micro_batch", voluntary), ("seq", involuntary)):
        if switches is not None:
            columns[name] = rng.poisson(switches[rank]).astype(np.int32)
    return from_columns(columns, (THREAD,), ("",))


def seen(culprit: Culprit, cpu_s: float, delayed_s: float) -> Blame:
    """The thread of rank 3 ran, and waited for a processor, for so long a step; those of the others 0.26 s and 5 ms."""
    table, plan = simulate(Job(measures_cpu=True), [culprit], STEPS, 1)
    cpu, delayed = np.full(8, 0.26), np.full(8, 0.005)
    cpu[3], delayed[3] = cpu_s, delayed_s
    shape = JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan))
    blame = blame_of(concatenated([table, threads(table, cpu, delayed)]), shape)
    assert blame is not None
    return blame


@pytest.mark.parametrize(
    ("delayed", "known", "kind", "says"),
    [
        (0.24, True, Slowness.HOST, "not scheduled for"),
        (0.15, True, Slowness.HOST, "not scheduled for"),
        (0.005, True, Slowness.WAIT, "asleep, at a lock or in a read"),
        (0.05, True, Slowness.WAIT, "asleep, at a lock or in a read"),
        (0.0, False, Slowness.HOST, "not scheduled for"),
    ],
)
@pytest.mark.parametrize(("what", "part"), [("forward", "forward of stage 0"), ("backward", "backward of stage 0")])
def test_off_the_processor_is_the_hosts_only_where_it_was_ready(
    delayed: float, known: bool, kind: Slowness, says: str, what: str, part: str
) -> None:
    """Twice the time in one part of its work (80 ms of forward more in a step, or 160 of backward)."""
    scale = 1.0 if what == "backward" else 0.5
    table, plan = simulate(Job(measures_cpu=True), [Culprit(3, what, 1.0)], STEPS, 1)
    mine = (table.rank == 3) & (table.kind == table.kinds.index(what))
    table.cpu[mine] //= 2
    cpu, kept = np.full(8, 0.3), np.full(8, 0.005 if known else -1.0)
    kept[3] = 0.005 + (delayed - 0.005) * scale if known else -1.0
    shape = JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan))
    blame = blame_of(concatenated([table, threads(table, cpu, kept)]), shape)
    assert blame is not None
    (culprit,) = blame.culprits
    assert (culprit.kind, culprit.rank, culprit.what) == (kind, 3, part)
    assert says in culprit.text
    assert part in culprit.text


@pytest.mark.parametrize(
    ("cpu", "delayed", "kind"),
    [(0.26, 0.005, Slowness.WAIT), (0.26, 0.05, Slowness.HOST), (0.32, 0.005, Slowness.COMPUTE)],
)
def test_between_spans_too(cpu: float, delayed: float, kind: Slowness) -> None:
    """60 ms more between spans: asleep, kept from running, or at work (as its processor time says)."""
    blame = seen(Culprit(3, "between", 1500.0), cpu, delayed)
    (culprit,) = blame.culprits
    assert (culprit.kind, culprit.rank, culprit.what) == (kind, 3, "other")


@pytest.mark.parametrize(
    ("voluntary", "involuntary", "others", "kind"),
    [
        (3.0, 2.0, 2.0, Slowness.WAIT),
        (1.5, 0.0, 0.0, Slowness.WAIT),
        (1.5, 40.0, 40.0, Slowness.WAIT),  # a busy host, on which its peers are interrupted as often
        (3.0, 50.0, 2.0, Slowness.HOST),
        (30.0, 12.0, 2.0, Slowness.HOST),
        (0.0, 0.0, 0.0, Slowness.HOST),  # it never left by itself: time that a hypervisor took, say
    ],
)
def test_where_run_queue_wait_is_not_known_context_switches_report(
    voluntary: float, involuntary: float, others: float, kind: Slowness
) -> None:
    """Forward lasts 80 ms longer in a step, off the CPU, while its peers wait in collectives."""
    table, plan = simulate(Job(measures_cpu=True), [Culprit(3, "forward", 1.0)], STEPS, 1)
    table.cpu[(table.rank == 3) & (table.kind == table.kinds.index("forward"))] //= 2
    willing, forced = np.full(8, 20.0), np.full(8, others)
    willing[3], forced[3] = voluntary, involuntary
    rows = threads(table, np.full(8, 0.3), np.full(8, -1.0), willing, forced)
    blame = blame_of(concatenated([table, rows]), JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan)))
    assert blame is not None
    assert [(c.kind, c.rank, c.what) for c in blame.culprits] == [(kind, 3, "forward of stage 0")]


def test_without_rows_of_threads_the_host_is_blamed_as_ever() -> None:
    table, plan = simulate(Job(measures_cpu=True), [Culprit(3, "compute", 1.0)], STEPS, 1)
    table.cpu[table.rank == 3] //= 2
    blame = blame_of(table, JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan)))
    assert blame is not None
    assert [(c.kind, c.rank) for c in blame.culprits] == [(Slowness.HOST, 3)]


def test_slow_loading_is_data_and_no_wait() -> None:
    """A loader that sleeps: twice as long, without the processor."""
    table, plan = simulate(Job(measures_cpu=True), [Culprit(3, "load", 4.0)], STEPS, 1)
    table.cpu[(table.rank == 3) & (table.kind == table.kinds.index("load"))] //= 10
    rows = threads(table, np.full(8, 0.3), np.full(8, 0.005))
    blame = blame_of(concatenated([table, rows]), JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan)))
    assert blame is not None
    assert [(c.kind, c.rank) for c in blame.culprits] == [(Slowness.DATA, 3)]


def test_a_thread_that_sleeps_waits_for_no_processor() -> None:
    clock = ThreadClock()
    assert clock.since() is None
    delayed = []
    for _ in range(20):
        time.sleep(0.05)
        passed = clock.since()
        assert passed is not None
        assert passed.cpu < 40e6
        delayed.append(passed.delayed)
        if passed.delayed < 45e6:
            break
    assert min(delayed) < 45e6  # once it woke, a busy machine may make it wait; a sleep that counted would always show
    found: list[object] = []
    other = threading.Thread(target=lambda: found.append(clock.since()))
    other.start()
    other.join()
    assert found == [None], "another thread has clocks of its own"
    assert clock.since() is None


def says(monkeypatch: pytest.MonkeyPatch, *contents: bytes) -> None:
    """Of schedstat, one after the other, and the last for ever."""
    left = list(contents)
    monkeypatch.setattr(os, "pread", lambda fd, size, at: left.pop(0) if len(left) > 1 else left[0])


@pytest.mark.parametrize("content", [b"", b"0 0 0\n", b"rubbish\n"])
def test_a_kernel_that_does_not_report_is_one_that_is_not_known(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, content)
    clock = ThreadClock()
    assert clock.since() is None
    for _ in range(2):
        passed = clock.since()
        assert passed is not None
        assert passed.delayed == -1


def test_no_run_queue_wait_is_a_figure_where_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, b"5000 0 1\n", b"9000 0 2\n", b"9900 700 3\n", b"0 0 0\n", b"9999 900 4\n")
    clock = ThreadClock()
    clock.since()
    found = [clock.since() for _ in range(4)]
    assert [(one.delayed, one.voluntary) for one in found[:2] if one is not None] == [(0, -1), (700, -1)]
    assert [one.delayed for one in found[2:] if one is not None] == [-1, -1], "no difference to what is not known"


def test_context_switches_are_counted_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this thread: asleep it leaves by itself; beside others on its processor it is interrupted."""
    says(monkeypatch, b"0 0 0\n")
    time.sleep(0.001)
    if not resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw:
        pytest.skip("this kernel does not count context switches")
    clock = ThreadClock()
    clock.since()
    for _ in range(5):
        time.sleep(0.001)
    passed = clock.since()
    assert passed is not None
    assert passed.voluntary >= 5
    before = os.sched_getaffinity(0)
    processor = min(before)
    spin = f"import os\nos.sched_setaffinity(0, [{processor}])\nprint('spins', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as beside:
        try:
            assert beside.stdout is not None
            beside.stdout.readline()
            os.sched_setaffinity(0, {processor})
            clock.since()
            forced, own, end = 0, 0, time.monotonic() + 20
            while forced < 5 and time.monotonic() < end:
                passed = clock.since()
                assert passed is not None
                forced, own = forced + passed.involuntary, own + passed.voluntary
        finally:
            os.sched_setaffinity(0, before)
            beside.kill()
    assert forced >= 5 > own


def test_a_kernel_that_counts_no_switches_either(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, b"0 0 0\n")
    monkeypatch.setattr(resource, "getrusage", lambda who: resource.struct_rusage([0] * 16))
    clock = ThreadClock()
    clock.since()
    passed = clock.since()
    assert passed is not None
    assert passed[1:] == (-1, -1, -1)
