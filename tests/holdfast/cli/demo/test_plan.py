"""What a demo will do, and what it says at its end."""

from pathlib import Path

import pytest

from holdfast.base.config.client import DemoConfig
from holdfast.base.errors import UsageError
from holdfast.cli.demo import view as demo_view
from holdfast.cli.demo.plan import job_spec, layout, make_plan, mortal_nodes


@pytest.mark.parametrize(
    ("world", "given", "sizes"),
    [
        (8, (0, 0, 0), (2, 2, 2)),
        (4, (0, 0, 0), (2, 2, 1)),
        (2, (0, 0, 0), (2, 1, 1)),
        (1, (0, 0, 0), (1, 1, 1)),
        (3, (0, 0, 0), (1, 3, 1)),
        (16, (0, 0, 0), (2, 4, 2)),
        (8, (1, 0, 1), (1, 8, 1)),
        (8, (4, 0, 0), (4, 2, 1)),
        (8, (0, 4, 0), (2, 4, 1)),
        (8, (2, 2, 2), (2, 2, 2)),
        (8, (0, 0, 8), (1, 1, 8)),
    ],
)
def test_layout(world: int, given: tuple[int, int, int], sizes: tuple[int, int, int]) -> None:
    assert layout(world, *given) == sizes


@pytest.mark.parametrize(
    ("world", "given", "message"),
    [
        (8, (3, 0, 0), "does not divide 8"),
        (8, (2, 2, 1), "are 4 workers, but there are 8"),
        (8, (8, 1, 1), "pp up to 4"),
        (32, (1, 2, 16), "tp 1, 2, 4 or 8"),
    ],
)
def test_layouts_that_do_not_fit(world: int, given: tuple[int, int, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        layout(world, *given)


def test_the_controllers_own_faults_stay_with_the_demo() -> None:
    plan = make_plan(DemoConfig(), ["controller-kill@9", "kill@5:rank7", "controller-kill@3"])
    assert [str(fault) for fault in plan.faults] == ["kill@5:rank7"]
    assert [str(fault) for fault in plan.controller_kills] == ["controller-kill@3", "controller-kill@9"]
    spec = job_spec(plan, Path("/x/checkpoints"), Path("/y"))
    assert spec["faults"] == ["kill@5:rank7"]
    assert (spec["nnodes"], spec["nproc_per_node"], spec["max_steps"]) == (2, 4, 60)
    args = spec["program"]["args"]
    assert args[args.index("--store") + 1] == "file:///x/checkpoints"


def test_the_trainer_takes_what_the_demo_gives() -> None:
    from holdfast.trainer.__main__ import parse

    config = parse(job_spec(make_plan(DemoConfig(nproc=3), []), Path("/x"), Path("/y"))["program"]["args"])
    assert (config.parallel.pp, config.parallel.dp, config.parallel.tp) == (2, 3, 1)
    assert config.train.micro_batches == 9
    assert config.checkpoint.store == "file:///x"


def test_a_step_that_was_done_again_counts_once() -> None:
    steps = {"step": [0, 1, 1, 2], "loss": [3.0, 9.0, 2.0, 1.0], "seconds": [1.0, 1.0, 0.5, 0.5], "tokens": [1] * 4}
    keys = ("id", "kind", "culprit", "detect_s", "recover_s", "source", "action")
    incidents = [dict.fromkeys(keys, "new") | {"more": 1}, dict.fromkeys(keys, "old")]
    found = demo_view.result({"goodput": 0.9}, steps, incidents)
    assert found["steps"] == [
        {"step": 0, "loss": 3.0, "seconds": 1.0},
        {"step": 1, "loss": 2.0, "seconds": 0.5},
        {"step": 2, "loss": 1.0, "seconds": 0.5},
    ]
    assert [one["id"] for one in found["incidents"]] == ["old", "new"]
    assert set(found["incidents"][0]) == set(keys)
    assert found["goodput"] == 0.9


def test_smaller_sizes_are_those_that_keep_replicas_whole_and_the_batch_the_same() -> None:
    plan = make_plan(DemoConfig(nodes=4, nproc=2, pp=2, dp=4, tp=1, min_nodes=1), ["node-kill@5:node3"])
    assert plan.node_counts == (1, 2)  # of 3 replicas none could take a third of 8 micro-batches
    assert job_spec(plan, Path("/x"), Path("/y"))["node_counts"] == [1, 2]
    assert mortal_nodes(plan) == ["node3"]
    assert make_plan(DemoConfig(), []).node_counts == ()
    with pytest.raises(UsageError, match="min_nodes 1: with pp 4 and tp 2"):
        make_plan(DemoConfig(pp=4, tp=2, min_nodes=1), [])
    with pytest.raises(UsageError, match="min_nodes must not be above nodes, 2"):
        DemoConfig(min_nodes=3)
