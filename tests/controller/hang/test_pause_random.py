"""Random scripts of `benchmarks/pauses.py`: what they are composed of, and what is wrong with how one went."""

import ast
import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pause_random import cases, is_honest, median_s, rows, truth, wrong, wrong_rows

WORKERS = Path(__file__).parents[3] / "benchmarks" / "workers"
PARTS = [path.stem for path in WORKERS.glob("random_*.py")]
COUNT = 3000


@pytest.fixture(scope="module")
def workers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(WORKERS))
        yield


@pytest.fixture(scope="module")
def composed(workers: None) -> list[Any]:
    make = importlib.import_module("random_composition").composed
    return [make(5, index) for index in range(COUNT)]


def test_nothing_of_the_judge_is_in_a_script() -> None:
    names = [*(WORKERS / f"{part}.py" for part in PARTS), WORKERS.parent / "pause_random.py"]
    for path in names:
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        imported += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        assert not [name for name in imported if name.partition(".")[0] in ("holdfast", "controller", "diagnostics")]


def test_a_seed_and_an_index_are_one_script(composed: list[Any]) -> None:
    make = importlib.import_module("random_composition").composed
    assert [make(5, index) for index in range(40)] == composed[:40]
    assert [make(6, index) for index in range(40)] != composed[:40]
    assert [one.is_honest for one in composed] == [index % 2 == 0 for index in range(COUNT)]


def test_everything_in_the_catalog_is_drawn_and_can_be_done(composed: list[Any]) -> None:
    catalog, waits = importlib.import_module("random_catalog"), importlib.import_module("random_waits")
    hangs, groups = importlib.import_module("random_hangs"), importlib.import_module("random_groups")
    plain = importlib.import_module("random_frameworks").PLAIN
    assert set(catalog.FRAMEWORKS) == {one.framework for one in composed}
    others = (WORKERS / "random_parallel.py").read_text()  # which takes seconds to import
    assert all(f'"{name}": ' in others for name in set(catalog.FRAMEWORKS) - set(plain))
    pauses = [pause for one in composed for pause in one.pauses]
    assert {pause.what for pause in pauses} == {*catalog.WHATS, "recompile"}
    assert set(catalog.WHATS) <= set(waits.PAUSES)
    assert {one.groups for one in composed} <= set(groups.SIDES)
    assert {place for places in catalog.PLACES.values() for place in places} <= {pause.place for pause in pauses}
    assert set(catalog.LOCAL) == set(hangs.LOCAL)
    assert set(catalog.SHARED) == set(hangs.SHARED)
    assert {one.hang.what for one in composed if one.hang} == {*hangs.LOCAL, *hangs.SHARED}
    assert {one.framework for one in composed if one.hang} >= {"ddp", "fsdp2", "tp", "pipeline", "dcp", "collectives"}


def test_pauses_are_short_and_come_to_their_turn(composed: list[Any]) -> None:
    for one in composed:
        for event in (*one.pauses, *([one.hang] if one.hang else [])):
            assert 0 < event.step < one.steps
            assert event.place in importlib.import_module("random_catalog").PLACES[one.framework] or (
                event.place == one.groups
            )
        assert all(2.0 <= pause.seconds <= 25.0 for pause in one.pauses)


DEAD: dict[str, Any] = {
    "truth": {"set": "hang", "kind": "kind", "life": "dead", "named": "rank1", "within_s": 2.0, "limit_s": 60.0},
    "state": "finished", "restarts": 1, "nodes": {"node0": "healthy"}, "named": "rank1", "life": "dead",
    "seconds": 1.1, "incidents": [{"summary": "rank 1 hangs"}],
}  # fmt: skip
IDLE = DEAD | {"truth": DEAD["truth"] | {"life": "idle", "limit_s": 8.0}, "life": "idle", "seconds": 8.4}
EITHER = IDLE | {"truth": IDLE["truth"] | {"life": "either"}}
HONEST = DEAD | {"truth": {"set": "honest"}, "restarts": 0, "incidents": [], "named": "", "life": ""}


def test_what_is_right() -> None:
    assert wrong(DEAD) == wrong(IDLE) == wrong(EITHER) == wrong(EITHER | {"life": "dead", "seconds": 1.0}) == []
    assert wrong(HONEST) == []


@pytest.mark.parametrize(
    ("found", "change", "says"),
    [
        (HONEST, {"restarts": 1}, "1 restarts"),
        (HONEST, {"incidents": [{"summary": "rank 0 is dead"}]}, "incident: rank 0 is dead"),
        (HONEST, {"state": "running"}, "the job is running"),
        (HONEST, {"nodes": {"node0": "faulty"}}, "node node0 is faulty"),
        (HONEST, {"truth": {}}, "did not begin"),
        (DEAD, {"named": "rank2"}, "named rank2, not rank1"),
        (DEAD, {"life": "idle"}, "judged idle, not dead"),
        (DEAD, {"seconds": 2.4}, "found after 2.40 s, not within 2 s"),
        (DEAD, {"seconds": math.nan}, "not within 2 s"),
        (DEAD, {"incidents": []}, "not found"),
        (DEAD, {"incidents": [{"summary": ""}] * 2}, "2 incidents"),
        (IDLE, {"life": "dead", "seconds": 1.0}, "judged dead, not idle; ended after 1.0 s, before 8 s"),
        (IDLE, {"seconds": 60.2}, "ended after 60.2 s, not at 8 s"),
        (EITHER, {"seconds": 60.2}, "ended after 60.2 s, not at 8 s"),
    ],
)
def test_what_is_wrong(found: dict[str, Any], change: dict[str, Any], says: str) -> None:
    assert says in "; ".join(wrong(found | change))


def test_what_was_meant_as_a_hang_and_ended_by_itself_is_none() -> None:
    left = DEAD | {"incidents": [], "restarts": 0, "truth": DEAD["truth"] | {"ended": 3}}
    assert wrong(left) == []
    assert rows([{"case": "random:1:1", "set": "hang", "holdfast": left | {"wrong": []}}])[0][:3] == (
        "hang: none, it ended by itself", 1, 1,
    )  # fmt: skip
    assert wrong(left | {"restarts": 1}) == ["not found"]
    assert wrong(left | {"truth": left["truth"] | {"ended": 2}}) == ["not found"]


def test_the_table_and_the_names_that_repeat_a_case() -> None:
    late = DEAD | {"seconds": 3.0, "wrong": ["found after 3.00 s"]}
    late["truth"] = late["truth"] | {"composition": {"framework": "ddp", "groups": "none", "pauses": [], "hang": {
        "what": "kind", "place": "between", "step": 4, "ranks": [1], "thread": "main"}}}  # fmt: skip
    ended = HONEST | {"restarts": 2, "wrong": ["2 restarts"], "truth": late["truth"] | {"set": "honest", "life": ""}}
    found = [
        {"case": "random:1:0", "set": "honest", "holdfast": HONEST | {"wrong": []}},
        {"case": "random:1:2", "set": "honest", "holdfast": ended},
        {"case": "random:1:1", "set": "hang", "holdfast": DEAD | {"wrong": []}},
        {"case": "random:1:3", "set": "hang", "holdfast": late, "torchrun": {"code": None, "is_right": False}},
    ]
    dead, honest = rows(found)
    assert honest[:4] == ("honest", 2, 1, 1)
    assert dead == ("hang: dead", 2, 1, 2, 0, 0, 2.05, 3.0, "1 of 2")
    assert median_s(found) == 2.05
    assert [row[0] for row in wrong_rows(found)] == ["random:1:2", "random:1:3", "random:1:3"]
    assert wrong_rows(found)[1][1:] == ("ddp/none kind@between:4 r1 main", "found after 3.00 s")


def test_which_cases_there_are() -> None:
    assert cases(3, 9, None) == ["random:9:0", "random:9:1", "random:9:2"]
    assert [is_honest(case) for case in cases(3, 9, "hangs")] == [False] * 3
    assert cases(3, 9, "honest") == ["random:9:0", "random:9:2", "random:9:4"]


def test_a_hang_has_begun_when_all_who_take_part_have(tmp_path: Path) -> None:
    assert truth(tmp_path) == {}
    (tmp_path / "truth.json").write_text('{"set": "hang", "marks": 2}')
    (tmp_path / "begun-0").write_text("10.5")
    assert math.isnan(truth(tmp_path)["began"])
    (tmp_path / "begun-2").write_text("11.5")
    assert truth(tmp_path)["began"] == 11.5
