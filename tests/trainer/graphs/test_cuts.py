"""Plans for the trainer's model: costs in closed form, settings that it takes, reasons for what is left out."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from holdfast.planner.partition.scored import simulated
from holdfast.trainer.graphs.cuts import Machines, _across_nodes, _Search, find
from holdfast.trainer.graphs.executable import MATRICES, POSITIONS, REPLICAS, SHARES, VOCABULARY, Way
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import TrainerLayout, plan
from holdfast.trainer.settings.load import load

SMALL = {"model.d_model": 64, "model.heads": 8, "data.seq_len": 32, "model.layers": 6, "train.micro_batches": 8}
FAST = Machines(2, 2, flops=1e9, memory_bytes=1e9)
WIDTH, LENGTH = 64, 32


def config_of(**settings: Any) -> Config:
    return load(overrides=[*SMALL.items(), *((key.replace("__", "."), value) for key, value in settings.items())])


@pytest.mark.parametrize(("dp", "tp"), [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)])
@pytest.mark.parametrize(("zero", "sequence"), [(0, False), (1, True), (3, False)])
def test_a_layer_costs_what_megatron_and_zero_say(dp: int, tp: int, zero: int, sequence: bool) -> None:
    """A parallel block: forward one sum of activations and one back, 2 (n-1)/n x each, as halves with `sequence`; once
    a step the gradients, 2 (n-1)/n of the rank's parameters, or three halves for each micro-batch with stage 3."""
    inside, between = 1e-7, 1e-6
    machines = Machines(2, 2, 1e9, 1e9, inside_alpha=0, inside_beta=inside, between_alpha=0, between_beta=between)
    found = _Search(config_of(train__micro_batch_size=2), machines, 60).block(1, Way(zero, sequence), dp, tp)
    assert found is not None
    samples, count = 2, 8 // dp
    matrices = WIDTH * (3 * WIDTH + 4 * WIDTH) + 5 * WIDTH * WIDTH
    flops = samples * LENGTH * (2 * matrices + 4 * LENGTH * WIDTH)
    compute = 3 * flops / 1e9 / tp
    assert found.compute == pytest.approx(compute, rel=1e-9)
    activation = samples * LENGTH * WIDTH * 4
    sums = 2 * 2 * (tp - 1) / tp * activation * inside
    if sequence and tp > 1:
        sums += (
            2 * (tp - 1) / tp * WIDTH * 4 * inside / count
        )  # the scales of the norm, of which each has a part of the sum
    parameters = (matrices / tp + WIDTH) * 4
    of_replicas = between if dp * tp > 2 else inside
    times = 3 if zero == 3 else 2 / count
    sums += times * (dp - 1) / dp * parameters * of_replicas
    assert found.cost - found.compute == pytest.approx(sums, rel=1e-6, abs=1e-9)
    shared = {0: 1, 1: 1, 3: dp}[zero]
    states = parameters * 2 / (dp if zero else 1)
    assert found.fixed_bytes == pytest.approx(2 * parameters / shared + states, rel=1e-9)


def test_what_is_found_is_what_the_trainer_takes() -> None:
    found = find(config_of(), FAST, keep=1000)
    assert len(found.cuts) > 10
    times = [cut.simulated_seconds for cut in found.cuts]
    assert times == sorted(times)
    assert len({tuple(cut.settings) for cut in found.cuts}) == len(found.cuts)
    for cut in found.cuts:
        assert plan(cut.config, 4, 256) == cut.layout
        assert sum(cut.layout.stage_layers) == 6
        assert len(cut.stage_seconds) == cut.layout.pp
        assert cut.simulated_seconds == pytest.approx(cut.seconds, rel=0.05)
    assert {MATRICES, POSITIONS, REPLICAS, SHARES, VOCABULARY} <= found.refused.keys()


def test_ranks_of_one_layer_stay_in_a_node() -> None:
    """Three stages of 1, 2 and 1 on nodes of two devices would have the second one in both."""
    across, inside = (TrainerLayout(3, 1, 2, 1, 8, stage_tp=tps) for tps in ((1, 2, 1), (2, 1, 1)))
    assert _across_nodes(across, 2) == "tp ranks would lie in two nodes, as ranks are numbered in the order of stages"
    assert _across_nodes(inside, 2) is None
    found = find(config_of(), FAST, keep=1000)
    for cut in found.cuts:
        for pp in range(cut.layout.pp):
            for dp in range(cut.layout.dp):
                assert len({rank // 2 for rank in cut.layout.line(pp, dp)}) == 1


def test_less_memory_is_more_sharing_until_nothing_fits() -> None:
    """One layer on four nodes of one device: only replicas. Parameter, gradient and two averages take 16 bytes whole,
    10 with averages shared by four, 4 with all shared."""
    config = config_of(model__layers=1)
    parts = [_Search(config, Machines(4, 1, 1e9, 1e9), 60).block(block, Way(0), 4, 1) for block in range(3)]
    kept = [part.kept_bytes for part in parts if part is not None]
    parameters = 12 * WIDTH * WIDTH + WIDTH + 2 * 256 * WIDTH + WIDTH
    for each, zero in ((16, 0), (10, 1), (4, 3)):
        limit = each * parameters + sum(kept) + max(kept) + 1
        assert find(config, Machines(4, 1, 1e9, limit)).cuts[0].config.parallel.zero == zero
    with pytest.raises(ConfigError, match=r"no layout of the model on 4 devices is possible: .*more memory") as error:
        find(config, Machines(4, 1, 1e9, limit - 2))
    assert "\n" not in str(error.value)


def test_a_prime_number_of_devices_has_a_plan() -> None:
    """Seven devices: no replicas of a batch of eight, so stages of one and two."""
    cut = find(config_of(), Machines(1, 7, 1e9, 1e9)).cuts[0]
    assert (cut.layout.world, cut.layout.dp, sum(cut.layout.tps)) == (7, 1, 7)


def test_very_many_layers_are_clustered_evenly() -> None:
    search = _Search(config_of(model__layers=105), FAST, 60)
    sizes = [b - a for a, b in itertools.pairwise(search.ends)]
    assert (sum(sizes), len(sizes), set(sizes)) == (105, 48, {2, 3})
    found = search.pipeline(1, Way(1))
    assert found is not None
    assert found.stages[-1].stop == 105
    assert {one.stop for one in found.stages} <= set(search.ends)


@pytest.mark.parametrize(
    ("machines", "says"),
    [
        ({"nodes": 0}, "nodes is 0: must be 1 or more"),
        ({"flops": 0.0}, "flops is 0.0: must be above 0"),
        ({"memory_bytes": math.inf}, "memory_bytes is inf: must be above 0"),
        ({"between_beta": -1.0}, "between_beta is -1.0: must be 0 or more seconds"),
        ({"inside_alpha": math.nan}, "inside_alpha is nan: must be 0 or more seconds"),
    ],
)
def test_machines_that_are_none(machines: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Machines(**{"nodes": 1, "per_node": 1, "flops": 1e9, "memory_bytes": 1e9, **machines})


def test_no_layout_at_all() -> None:
    with pytest.raises(ConfigError, match="no layout of the model on 13 devices is possible"):
        find(config_of(model__heads=1, model__layers=6), Machines(13, 1, 1e9, 1e9))


def test_even_layers_on_the_same_ranks_stand_beside_what_was_found() -> None:
    """1F1B of stages with as many layers each; sum t + (B - 1) max t is a bound."""
    machines = Machines(1, 3, flops=1e9, memory_bytes=1e9)
    found = find(config_of(), machines).cuts
    assert any(one.layout.stage_layers != (3, 3) for one in found if one.layout.pp == 2)
    for one in found:
        search, parallel = _Search(one.config, machines, 60), one.config.parallel
        way, times = Way(parallel.zero, parallel.sequence, parallel.shard_vocabulary), []
        each = one.config.model.layers // one.layout.pp
        for stage, tp in enumerate(one.layout.tps):
            layer, first, last = (search.block(block, way, one.layout.dp, tp) for block in (1, 0, 2))
            assert layer is not None
            assert first is not None
            assert last is not None
            ends = first.cost * (stage == 0) + last.cost * (stage == one.layout.pp - 1)
            times.append(each * layer.cost + ends)
        count = one.layout.local_micro_batches
        assert count * max(times) < one.even_seconds < 1.01 * (sum(times) + (count - 1) * max(times))
        assert one.even_seconds == pytest.approx(simulated(times, count), rel=0.01)
        assert one.even_seconds >= one.simulated_seconds * (1 - 1e-3)


def test_even_layers_that_do_not_fit_take_forever() -> None:
    """The devices with tp 2 hold twice as much as the one with tp 1."""
    machines = Machines(1, 3, flops=1e9, memory_bytes=1e9)
    search = _Search(config_of(), machines, 60)
    cut = next(one for one in find(config_of(), machines).cuts if one.layout.pp == 2)
    way = Way(cut.config.parallel.zero, cut.config.parallel.sequence, cut.config.parallel.shard_vocabulary)
    assert math.isfinite(search.even(cut.layout, way, 0.0))
    held = [search.block(1, way, 1, tp) for tp in cut.layout.tps]
    assert all(held)
    least = max(3 * (one.fixed_bytes + one.kept_bytes) for one in held if one)
    small = _Search(config_of(), Machines(1, 3, flops=1e9, memory_bytes=least), 60)
    assert small.even(cut.layout, way, 0.0) == math.inf


def test_even_layers_need_room_for_what_is_under_way() -> None:
    """Stage 0 of two holds two micro-batches: with room for one and a half, even layers do not fit."""
    machines = Machines(1, 3, flops=1e9, memory_bytes=1e9)
    cut = next(one for one in find(config_of(), machines).cuts if one.layout.tps == (1, 2))
    way = Way(cut.config.parallel.zero, cut.config.parallel.sequence, cut.config.parallel.shard_vocabulary)
    layer, table = (_Search(config_of(), machines, 60).block(block, way, 1, 1) for block in (1, 0))
    assert layer is not None
    assert table is not None
    parts = [layer] * 3 + [table]
    fixed, kept = sum(one.fixed_bytes for one in parts), [one.kept_bytes for one in parts]
    for held, fits in ((1.5, False), (2.5, True)):
        room = Machines(1, 3, flops=1e9, memory_bytes=fixed + max(kept) + held * sum(kept))
        assert math.isfinite(_Search(config_of(), room, 60).even(cut.layout, way, 0.0)) is fits
