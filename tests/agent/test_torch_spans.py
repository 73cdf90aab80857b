"""Spans of a script that knows nothing of them: what is its own, what is waiting, and who is to blame."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import messages as msg
from holdfast import span_rows
from holdfast.agent import probe_layout
from holdfast.agent.probe_reader import ProbeReader
from holdfast.diagnostics import span_table
from holdfast.diagnostics.blame_report import blame_of
from holdfast.diagnostics.job_shape import JobShape
from holdfast.diagnostics.span_table import SpanTable

SCRIPT = Path(__file__).parents[1] / "e2e" / "scripts" / "ddp_one_slow.py"
STEPS = 40
HOOKS = "import os, runpy, sys; from holdfast.agent import probe, torch_hooks; probe.attach(); torch_hooks.install(); "


@pytest.mark.slow
def test_the_slow_rank_of_two_is_named(tmp_path: Path, free_port: int) -> None:
    code = HOOKS + f"sys.argv[1:] = ['1', '{STEPS}']; runpy.run_path({str(SCRIPT)!r}, run_name='__main__'); os._exit(0)"
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **world, "RANK": str(rank), probe_layout.ENV_PATH: str(tmp_path / f"probe-{rank}")},
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    table = read(tmp_path)
    for rank in range(2):
        own = table.take((table.rank == rank) & (table.step == 20))
        kinds = [own.kinds[k] for k in own.kind[own.start.argsort()].tolist() if own.kinds[k] != "gc"]
        assert kinds == ["forward", "backward", "ddp:all_reduce", "optimizer"]
        work = own.take(own.group == 0)
        assert (work.cpu > 0).all()
    blame = blame_of(table.of_steps(3, STEPS), JobShape("j1", "script", ("node0",), 2))
    assert blame is not None
    first = blame.culprits[0]
    assert (first.kind, first.rank, first.what) == ("compute", 1, "forward")
    assert first.ratio > 1.5, "the script does twice the work there"
    assert blame.wait_s[0] > blame.wait_s[1], "the other one waits"


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
