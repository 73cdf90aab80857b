"""`holdfast top`: the worst first, in the lines that there are."""

import io
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from holdfast.cli.look.top import picture
from holdfast.cli.look.top_rows import By, TopRow, late_of, node_rows, ordered, rank_rows
from holdfast.cli.main import main
from tests.holdfast.support.fake_controller import FakeController, Json, health_as, job_as, node_as, ranks_as

Capture = pytest.CaptureFixture[str]
WORLD, PER_NODE = 12_288, 8


def culprit(rank: int, cost_s: float, peer: int = -1, by_design: bool = False) -> Json:
    return {"rank": rank, "peer": peer, "cost_s": cost_s, "by_design": by_design}


def blame_as(*culprits: Json) -> Json:
    return {"step_s": 0.5, "culprits": list(culprits)}


def large() -> tuple[Json, list[Json]]:
    """12,288 ranks: 100 is behind, 4711 stalled, 9000 exited."""
    names = [f"node{n}" for n in range(WORLD // PER_NODE)]
    step, state, operation = [7] * WORLD, [0] * WORLD, [0] * WORLD
    step[100], state[4711], state[9000], operation[4711] = 5, 1, 2, 1
    gpus = [{"index": i, "values": {"utilization_ratio": 0.9, "temperature_celsius": 60.0 + i}} for i in range(8)]
    nodes = [
        node_as(name, ranks=list(range(n * PER_NODE, (n + 1) * PER_NODE)), gpus=gpus, rx_bytes_per_s=1e6)
        for n, name in enumerate(names)
    ]
    return ranks_as(WORLD, names, step=step, state=state, operation=operation), nodes


def rows_of(blame: Json | None = None, by: By = By.hurt) -> list[TopRow]:
    ranks, nodes = large()
    return ordered(rank_rows(ranks, blame, nodes, "j1"), by)


def test_the_worst_are_first() -> None:
    rows = rows_of(blame_as(culprit(6, 0.05), culprit(3, 0.01), culprit(8, 0.2, by_design=True)))
    assert [row.rank for row in rows[:7]] == [9000, 4711, 6, 3, 100, 0, 1]
    assert [(row.late, row.lag) for row in rows[2:5]] == [(0.1, 0), (0.02, 0), (None, 2)]
    assert (rows[1].doing, rows[1].node) == ("train, all_reduce", "node588")


def test_a_slow_link_counts_for_both_of_its_ends() -> None:
    assert late_of(blame_as(culprit(2, 0.1, peer=5), culprit(5, 0.05))) == {2: 0.2, 5: 0.2}
    assert late_of(None) == {}


def test_the_gpu_of_a_rank_is_that_of_its_place_on_the_node_in_this_job() -> None:
    rows = {row.rank: row for row in rows_of(by=By.name)}
    assert list(rows) == list(range(WORLD))
    assert [rows[rank].temperature for rank in (0, 7, 8)] == [60.0, 67.0, 60.0]
    ranks, nodes = large()
    other = node_as("other", ranks=list(range(8)), gpus=[{"index": 0, "values": {"utilization_ratio": 0.1}}], job="j2")
    assert rank_rows(ranks, None, [*nodes, other], "j1")[0].gpu == 0.9
    assert rank_rows(ranks, None, [other], "j1")[0].gpu is None


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 50), (200, 50)])
@pytest.mark.parametrize("of_nodes", [False, True])
def test_at_12288_ranks_it_shows_what_fits_and_counts_the_rest(width: int, height: int, of_nodes: bool) -> None:
    ranks, nodes = large()
    rows = rank_rows(ranks, blame_as(culprit(6, 0.05)), nodes, "j1")
    shown = ordered(node_rows(nodes, rows, "j1") if of_nodes else rows, By.hurt)
    job = job_as("running", health=health_as("slow", "Rank 6 makes every step 10% longer." * 5))
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(picture(job, shown, By.hurt, width, height))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("slow  Rank 6")
    what, first, total = ("nodes", "node0", 1536) if of_nodes else ("ranks", "9000", WORLD)
    assert lines[1] == f"train (j1), step 7 of 10, {total:,} {what} by hurt"
    assert lines[3].split()[0] == first
    assert lines[-1] == f"… {total - (height - 4):,} more {what}"
    late = next(line for line in lines[3:] if "10.0%" in line).split()
    assert late[0] == ("node0" if of_nodes else "6")
    assert ("STEP TIME" in lines[2]) == (width == 200)


def test_a_node_has_the_worst_of_its_ranks() -> None:
    ranks, nodes = large()
    nodes[3] = nodes[3] | {"state": "suspect", "reason": "silent for 3 s"}
    rows = rank_rows(ranks, blame_as(culprit(6, 0.05)), nodes, "j1")
    found = ordered(node_rows(nodes, rows, "j1"), By.hurt)
    assert [row.node for row in found[:4]] == ["node3", "node0", "node12", "node1"]
    assert (found[0].doing, found[1].late, found[2].lag) == ("silent for 3 s", 0.1, 2)
    assert (found[1].gpu, found[1].temperature, found[1].network) == (0.9, 67.0, 3.5e6)
    by_heat = ordered(node_rows(nodes, rows, "j1"), By.temperature)
    assert [row.node for row in by_heat[:12]] == [f"node{n}" for n in range(12)]  # as the controller lists them


@given(st.sampled_from(By), st.integers(0, 2**32))
def test_every_order_holds_all_rows_and_has_what_is_unknown_last(by: By, seed: int) -> None:
    draw = random.Random(seed)

    def maybe() -> float | None:
        return draw.choice([None, draw.random()])

    rows = [
        TopRow(
            i, "n", draw.choice(["running", "stalled", "strange"]), lag=draw.randrange(3), late=maybe(),
            silent_s=maybe(), step_s=maybe(), gpu=maybe(), temperature=maybe(), memory=maybe(), network=maybe(),
        )
        for i in range(30)
    ]  # fmt: skip
    found = ordered(rows, by)
    assert sorted(row.rank or 0 for row in found) == list(range(30))
    column = {By.silent: "silent_s", By.time: "step_s"}.get(by, str(by))
    if by not in (By.hurt, By.name):
        values = [getattr(row, column) for row in found]
        known = [value for value in values if value is not None]
        assert values == known + [None] * (len(values) - len(known))
        assert known == sorted(known, reverse=by is not By.gpu)


def test_the_command(fake: FakeController, capsys: Capture) -> None:
    fake.ranks = ranks_as(4, ["node0", "node1"], step=[7, 7, 7, 3])
    fake.blame = blame_as(culprit(1, 0.05))
    assert main(["top"]) == 0  # no terminal: once
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["well  The job is running.", "train (j1), step 7 of 10, 4 ranks by hurt"]
    assert [line.split()[0] for line in lines[2:]] == ["RANK", "1", "3", "0", "2"]
    assert main(["top", "--by", "lag", "--rows", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["rank"] for row in found["rows"]] == [3]
    assert (found["left_out"], found["job"], found["by"]) == (3, "j1", "lag")
    assert main(["top", "--nodes", "--once", "-n", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "… 1 more node"
    assert main(["top", "--by", "beauty"]) == 2
    assert "'beauty' is not one of 'hurt', 'late'" in capsys.readouterr().err
