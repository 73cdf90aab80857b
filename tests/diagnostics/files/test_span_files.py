"""Spans on disk are plain Parquet: any Parquet reader reads them in place, without our code."""

import re
from pathlib import Path

import pytest

from benchmarks.simulated_spans import Culprit, Job, simulate
from holdfast.diagnostics.files import span_files
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.wire.plans import encode_plan

DOCS = Path(__file__).parents[3] / "docs" / "performance.md"


def test_the_query_of_the_docs_names_the_slow_rank_in_duckdb(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    table, plan = simulate(Job(), [Culprit(5, "forward", 0.2)], 20, 1)
    shape = JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan))
    span_files.write(table.of_steps(0, 9), shape, tmp_path / "1.parquet")
    span_files.write(table.of_steps(10, 19), shape, tmp_path / "2.parquet")
    match = re.search(r"```sql\n(.*?);\n```", DOCS.read_text(), re.DOTALL)
    assert match is not None
    query = re.sub(r"'spans/[^']*'", f"'{tmp_path}/*.parquet'", match[1])
    assert str(tmp_path) in query

    with duckdb.connect() as connection:
        rows = connection.sql(query).fetchall()
        ((spans,),) = connection.sql(f"SELECT count(*) FROM '{tmp_path}/*.parquet'").fetchall()

    assert spans == len(table.rank), "of both files"
    forwards = {rank: ms for _, rank, kind, ms in rows if kind.lower() == "forward"}
    assert sorted(forwards) == list(range(8))
    assert max(forwards, key=lambda rank: forwards[rank]) == 5
    own = (table.rank == 5) & (table.kind == [kind.lower() for kind in table.kinds].index("forward"))
    assert forwards[5] == pytest.approx((table.end - table.start)[own].mean() / 1e6), "nanoseconds there"
    assert {(node, rank) for node, rank, _, _ in rows} == {(f"n{rank // 4}", rank) for rank in range(8)}
