"""Spans of a script without instrumentation: what is its own, what is waiting, and the rank to blame."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.diagnostics.blame.model import Limits
from holdfast.diagnostics.blame.report import blame_of
from holdfast.diagnostics.steps import span_table
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.wire import messages as msg
from holdfast.wire import span_rows
from tests.trainer.support.forked import Zygote

SCRIPT = Path(__file__).parents[2] / "e2e" / "scripts" / "ddp_one_slow.py"
REASONS = SCRIPT.with_name("ddp_reasons.py")
STEPS = 120


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    warm = Zygote()
    yield warm
    warm.close()


def run_two(zygote: Zygote, script: Path, args: list[str], folder: Path) -> SpanTable:
    """What two ranks of a script recorded under the hooks."""
    words = {"script": str(script), "args": args}
    done = zygote.run("tests.agent.support.hooked:hooked", 2, folder, args=words)
    assert done["exits"] == [0, 0]
    return read(folder)


@pytest.mark.slow
def test_the_slow_rank_of_two_is_named(zygote: Zygote, tmp_path: Path) -> None:
    named = []
    for attempt in range(4):  # a busy host keeps both ranks from running: one quiet run is enough
        table = run_two(zygote, SCRIPT, ["1", str(STEPS)], tmp_path / str(attempt))
        for rank in range(2):
            own = table.take((table.rank == rank) & (table.step == 20))
            order = own.kind[own.start.argsort()].tolist()
            kinds = [own.kinds[k] for k in order if own.kinds[k] not in ("gc", "thread")]
            assert kinds == ["forward", "backward", "ddp:all_reduce", "optimizer"]
            work = own.take(own.group == 0)
            assert (work.cpu > 0).all()
        blame = blame_of(table.of_steps(3, STEPS), JobShape("j1", "script", ("node0",), 2))
        assert blame is not None
        named.append([(c.kind.value, c.rank, c.what, c.ratio) for c in blame.culprits])
        is_slow = named[-1] and named[-1][0][:3] == ("compute", 1, "forward")
        if is_slow and named[-1][0][3] > 1.5 and blame.wait_s[0] > blame.wait_s[1]:
            return  # the script does twice the work there, and the other one waits
    raise AssertionError(named)


@pytest.mark.slow
@pytest.mark.timeout(900)  # runs of a minute, on a busy machine
def test_why_a_rank_is_slow_is_reported_and_where(zygote: Zygote, tmp_path: Path) -> None:
    """Sleeping or waiting for a lock in its own forward is not host interference; a loader's time is data."""
    right: dict[str, str] = {}
    seen = []
    for attempt in range(8):  # a busy host keeps both ranks from running: each reason needs one quiet run
        missing = [reason for reason in EXPECTED if reason not in right]
        seen.append(found := reasons(zygote, missing, tmp_path / str(attempt)))
        for reason, (named, texts) in found.items():
            if EXPECTED[reason] in named:
                right.setdefault(reason, texts[named.index(EXPECTED[reason])])
        if len(right) == len(EXPECTED):
            break
    assert right.keys() == EXPECTED.keys(), seen
    assert "asleep, at a lock or in a read, in forward" in right["sleep"]
    assert "in the time between load and forward" in right["between"]


EXPECTED: dict[str, tuple[object, ...]] = {
    "sleep": ("waiting", 1, "forward"),
    "lock": ("waiting", 1, "forward"),
    "data": ("data loading", 1, "load"),
    "between": ("waiting", 1, "other"),
    "host": ("host interference", 1),
}


def reasons(zygote: Zygote, wanted: list[str], folder: Path) -> dict[str, tuple[list[tuple[object, ...]], list[str]]]:
    """The rank named for each of these reasons, and the wording."""
    steps, found = 25, {}
    table = run_two(zygote, REASONS, [str(steps), *wanted], folder)
    for at, reason in enumerate(wanted, 1):
        part = table.of_steps(at * steps + 3, (at + 1) * steps - 2)
        # This checks the reason, not whether a rank would be named by default.
        blame = blame_of(part, JobShape("j1", "script", ("node0",), 2), Limits(z=1.0, chance=0.5))
        assert blame is not None
        named = [(c.kind.value, c.rank, c.what)[: len(EXPECTED[reason])] for c in blame.culprits]
        found[reason] = named, [c.text for c in blame.culprits]
    return found


def read(folder: Path) -> SpanTable:
    """What both ranks have recorded."""
    parts = []
    for rank in range(2):
        reader = ProbeReader(str(folder / f"probe-{rank}"))
        rows = reader.new_rows()
        count = len(rows) // span_rows.ROW.size
        parts.append((0, msg.WorkerSpans(rank, 1, count, 0, 0, STEPS, tuple(reader.names()), span_rows.pack(rows))))
        reader.close()
    return span_table.decode(parts)
