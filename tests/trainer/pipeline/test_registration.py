"""One entry in the table of schedules is all that settings, layouts, plans and messages need."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from holdfast.plan.check import in_flight, verify
from holdfast.plan.plan import Action, Op, Order
from holdfast.plan.schedules.table import SCHEDULES, Placement, Schedule
from holdfast.trainer.pipeline.pipeline import build_plan
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import plan
from holdfast.trainer.settings.load import load

CPU = torch.device("cpu")


def one_at_a_time(ranks: int, chunks: int, micro_batches: int) -> list[Order]:
    """A micro-batch goes through all stages and back before the next one starts."""
    stages = range(ranks * chunks)
    work = [
        Action(op, stage, m)
        for m in range(micro_batches)
        for op, order in ((Op.FORWARD, stages), (Op.BACKWARD, reversed(stages)))
        for stage in order
    ]
    return [tuple(a for a in work if Placement.FOLD.rank_of(a.stage, ranks) == rank) for rank in range(ranks)]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> str:
    schedule = Schedule("one-at-a-time", one_at_a_time, chunks=2, placement=Placement.FOLD)
    monkeypatch.setitem(SCHEDULES, schedule.name, schedule)
    return schedule.name


def test_a_registered_schedule_is_set_laid_out_and_planned(registered: str) -> None:
    config = load(overrides=[("parallel.schedule", registered), ("parallel.pp", 2)])
    layout = plan(config, 2, 256)
    assert (layout.chunks, layout.stages_of(0), layout.stages_of(1)) == (2, [0, 3], [1, 2])
    made = build_plan(config, layout, CPU)
    assert verify(made) == []
    assert (made.schedule, in_flight(made)) == (registered, (2, 2))


def test_its_traits_refuse_what_it_cannot_do(registered: str) -> None:
    for key, value, says in (
        ("parallel.pp", 1, "parallel.schedule = one-at-a-time needs pp of 2 or more"),
        ("parallel.chunks", 3, "parallel.schedule = one-at-a-time needs parallel.chunks = 2, a way out and a way back"),
    ):
        config = load(overrides=[("parallel.schedule", registered), (key, value)])
        with pytest.raises(ConfigError, match=says):
            plan(config, 1, 256)


def test_it_is_among_the_choices_that_a_wrong_name_is_shown(registered: str) -> None:
    with pytest.raises(ConfigError, match=f"choose one of 1f1b, .*, {registered}$"):
        load(overrides=[("parallel.schedule", "zigzag")])


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_entry_makes_a_plan_from_its_defaults(name: str) -> None:
    chosen = [("parallel.schedule", name), ("parallel.pp", 2), ("parallel.zero", 0), ("train.micro_batch_size", 2)]
    config = load(overrides=chosen)
    layout = plan(config, 4, 256)
    assert layout.chunks == SCHEDULES[name].chunks
    assert verify(build_plan(config, layout, CPU)) == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            [("parallel.pp", 3)],
            "chimera cannot have 2 pipes on 3 ranks: pipes are 2 or more, even",
        ),
        ([("parallel.pp", 4), ("parallel.chunks", 3)], "chimera cannot have 3 pipes on 4 ranks"),
        (
            [("parallel.pp", 2), ("parallel.zero", 3)],
            r"pipes of chimera use it at different times \(set parallel.zero to 2 or less\)",
        ),
        (
            [("parallel.pp", 2), ("parallel.zero", 2), ("parallel.replica_sync", "eager")],
            r"zero = 2 sums them behind each micro-batch \(set parallel.replica_sync = end, or parallel.zero = 1",
        ),
        (
            [("parallel.schedule", "1f1b"), ("parallel.pp", 2), ("parallel.replica_sync", "eager-opt")],
            "1f1b has one pipe .*one of chimera, chimera-doubling, chimera-halving",
        ),
        (
            [("parallel.schedule", "chimera-halving"), ("parallel.pp", 2), ("train.micro_batch_size", 3)],
            "train.micro_batch_size = 3 cannot be cut in 2",
        ),
        (
            [("parallel.schedule", "chimera-halving"), ("parallel.pp", 2), ("model.dropout", 0.1)],
            "chimera-halving cuts micro-batches, and masks are for whole ones",
        ),
    ],
)
def test_pipes_that_cannot_be_are_refused_with_the_layout(settings: list[tuple[str, int]], says: str) -> None:
    config = load(overrides=[("parallel.schedule", "chimera"), *settings])
    with pytest.raises(ConfigError, match=says):
        plan(config, config.parallel.pp * (config.parallel.dp or 1), 256)


def test_settings_and_the_table_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from holdfast.trainer.settings.load import load\n"
        "load(overrides=[('parallel.schedule', 'zbv')])"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_rank_has_no_pipeline_of_several_stages(schedule: str) -> None:
    one = SCHEDULES[schedule]
    assert one.obstacle(1, 4) == ("needs pp of 2 or more" if one.chunks > 1 else None)
    assert one.obstacle(2, 4) is None
    assert one.parts == (2 if schedule == "chimera-halving" else 1)
