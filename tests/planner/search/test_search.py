"""The search against all layouts, one by one."""

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.errors import UsageError
from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Cluster
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.layers import Precision
from holdfast.planner.cost.layout import MEMORY, Layout, LayoutError
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.cost.prediction import Prediction
from holdfast.planner.search.ranked import Goal, Ranked, why
from holdfast.planner.search.reasons import NothingFits
from holdfast.planner.search.search import Search
from holdfast.planner.search.space import Space, families

SMALL = Transformer(layers=4, width=512, heads=4, vocab=1024, length=128)
LARGE = Transformer(96, 12288, 96, 51200, 2048)


def cluster(nodes: int = 2, gpus: int = 4, gpu: str = "A100", gbit: float = 200.0) -> Cluster:
    return parse(f'gpu = "{gpu}"\nnodes = {nodes}\ngpus_per_node = {gpus}\n[links.switch]\ngbit_per_s = {gbit}\n')


def exhaustive(
    model: Transformer, costs: CostModel, samples: int, goal: Goal, space: Space, limit: float
) -> list[Ranked]:
    found = []
    for family in families(model, costs.cluster, samples, space):
        for layout in family.members(model, space):
            prediction = costs.predict(model, layout)
            if prediction.fullest.total <= limit:
                found.append(Ranked(layout, prediction))
    return sorted(found, key=lambda one: one.key(goal))


@settings(deadline=None, max_examples=8)
@given(
    st.sampled_from([(1, 4), (2, 2), (2, 4), (3, 2)]),
    st.sampled_from([4, 6, 8, 16]),
    st.sampled_from(["time", "memory"]),
    st.sampled_from([1.0, 0.3, 0.1]),
    st.sampled_from([400.0, 1.0]),
)
def test_it_finds_what_looking_at_all_finds(
    sizes: tuple[int, int], samples: int, goal: Goal, room: float, gbit: float
) -> None:
    costs = CostModel(cluster(*sizes, gbit=gbit))
    space = Space(schedules=("interleaved", "1f1b", "zbv", "chimera"), micro_batch_sizes=(1, 2), idle_nodes=1)
    everything = exhaustive(SMALL, costs, samples, goal, space, float("inf"))
    largest = max(one.prediction.fullest.total for one in everything)
    least = min(one.prediction.fullest.total for one in everything)
    limit = max(least, room * largest)
    best = [one for one in everything if one.prediction.fullest.total <= limit][:10]
    found = Search(SMALL, CostModel(cluster(*sizes, gbit=gbit)), samples, goal, space, limit).run()
    assert found.is_complete
    assert [one.key(goal) for one in found.best] == [one.key(goal) for one in best]


HOST = "[host]\nmemory_bytes = {}\nbytes_per_s = {}\n"
IN_HOST = Space(
    schedules=("1f1b", "interleaved"), memory=MEMORY, micro_batch_sizes=(1, 2, 4, 8), activation_blocks=(3, 2),
    recompute=("none", "full"),
)  # fmt: skip


def with_host(nodes: int, gpus: int, host_bytes: float, bytes_per_s: float, gbit: float = 200.0) -> CostModel:
    text = f'gpu = "A100"\nnodes = {nodes}\ngpus_per_node = {gpus}\n[links.switch]\ngbit_per_s = {gbit}\n'
    return CostModel(parse(text + HOST.format(host_bytes, bytes_per_s)), Precision.of("bfloat16"))


def everything_of(costs: CostModel, samples: int, space: Space) -> list[Ranked]:
    """All members of the space that the model can have, whatever they take."""
    found = []
    for family in families(SMALL, costs.cluster, samples, space):
        for layout in family.members(SMALL, space):
            with suppress(LayoutError):  # chunks that a device has no room for
                found.append(Ranked(layout, costs.predict(SMALL, layout)))
    return found


@settings(deadline=None, max_examples=6)
@given(
    st.sampled_from([(1, 2), (1, 4), (2, 2), (3, 1)]),
    st.sampled_from([4, 6, 8]),
    st.sampled_from(["time", "memory"]),
    st.sampled_from([1.0, 0.4, 0.15]),
    st.sampled_from([1e12, 60e6]),
    st.sampled_from([1e12, 1e9]),
)
def test_it_finds_what_looking_at_all_finds_with_host_memory(
    sizes: tuple[int, int], samples: int, goal: Goal, room: float, host_bytes: float, bytes_per_s: float
) -> None:
    costs = with_host(*sizes, host_bytes, bytes_per_s, gbit=1.0)
    on_device = everything_of(costs, samples, replace(IN_HOST, memory=("device",)))
    limit = room * max(one.prediction.fullest.total for one in on_device)
    space = replace(IN_HOST, device_bytes=int(limit))
    best = sorted(
        (one for one in everything_of(costs, samples, space)
         if one.prediction.fullest.total <= limit and one.prediction.host_bytes <= host_bytes
         and not (one.layout.activation_blocks and one.prediction.moved_bytes == 0)),
        key=lambda one: one.key(goal),
    )[:10]  # fmt: skip
    search = Search(SMALL, with_host(*sizes, host_bytes, bytes_per_s, gbit=1.0), samples, goal, space, limit)
    if not best:
        with pytest.raises(NothingFits):
            search.run()
        return
    found = search.run()
    assert found.is_complete
    assert [one.key(goal) for one in found.best] == [one.key(goal) for one in best]


def test_floors_are_floors_of_what_is_in_host_memory() -> None:
    """Of each member, and of its family under all policies."""
    seen = set()
    for bytes_per_s in (1e13, 1e9):
        costs, space = with_host(2, 4, 1e12, bytes_per_s), replace(IN_HOST, device_bytes=1 << 28)
        for family in families(SMALL, costs.cluster, 8, space):
            shared = replace(family.base, zero=max(space.zero))
            of_family = costs.least_of_family(SMALL, shared, family.policies(space))
            for layout in family.members(SMALL, space):
                prediction = costs.predict(SMALL, layout)
                seen.add((layout.policy, layout.sub_batches, layout.reduce_pieces))
                held, step = prediction.fullest.total * (1 + 1e-9), prediction.step_s * (1 + 1e-9)
                assert costs.floor(SMALL, family.base) <= step
                assert costs.floor(SMALL, layout, with_schedule=True) <= step
                assert of_family <= costs.least_bytes(SMALL, layout) * (1 + 1e-9)
                assert costs.least_bytes(SMALL, layout) <= held
    assert {policy for policy, _, _ in seen} == set(MEMORY)
    assert {parts for _, parts, _ in seen} == {1, 2}
    assert {pieces for _, _, pieces in seen} == {0, 1}


@pytest.mark.parametrize("gb_per_s", [0.1, 1.0, 10.0, 100.0, 1e4])
def test_floors_know_that_parts_hide_sums(gb_per_s: float) -> None:
    """From links on which sums take longer than computation to those on which all but the last are hidden."""
    text = f'gpu = "A100"\nnodes = 1\ngpus_per_node = 4\n[links.node]\nalpha_us = 0\ngb_per_s = {gb_per_s}\n'
    costs, hidden = CostModel(parse(text), Precision.of("bfloat16")), 0
    for recompute in ("none", "selective"):
        for pp, tp in ((1, 2), (1, 4), (2, 2)):
            layout = Layout(pp, 1, tp, micro_batches=4, micro_batch_size=8, sub_batches=2, recompute=recompute)
            step = costs.predict(SMALL, layout).step_s
            hidden += step < costs.predict(SMALL, replace(layout, sub_batches=1)).step_s
            assert costs.floor(SMALL, layout) <= step * (1 + 1e-9)
            assert costs.floor(SMALL, layout, with_schedule=True) <= step * (1 + 1e-9)
    assert hidden


def test_activations_that_never_leave_are_no_layout_of_their_own() -> None:
    costs = with_host(1, 4, 1e12, 25e9)
    space = Space(memory=("activations",), activation_blocks=(64,), micro_batch_sizes=(1,), schedules=("1f1b",))
    with pytest.raises(NothingFits):
        Search(SMALL, costs, 8, space=space).run()
    found = Search(SMALL, costs, 8, space=replace(space, memory=("device", "activations"))).run()
    assert {one.layout.policy for one in found.best} == {"device"}


def test_host_memory_is_taken_where_the_device_has_no_room() -> None:
    model = Transformer(8, 2048, 16, 1024, 1024)
    costs = with_host(1, 4, 1e12, 25e9)
    least = min(
        costs.predict(model, layout).fullest.total
        for family in families(model, costs.cluster, 32, Space(micro_batch_sizes=(1,)))
        for layout in family.members(model, Space(schedules=("1f1b",)))
    )
    with pytest.raises(NothingFits):
        Search(model, costs, 32, space=Space(schedules=("1f1b",)), limit_bytes=0.6 * least).run()
    found = Search(model, costs, 32, space=Space(memory=MEMORY, schedules=("1f1b",)), limit_bytes=0.6 * least).run()
    assert all(one.layout.uses_host for one in found.best)
    assert all(one.prediction.fullest.total <= 0.6 * least for one in found.best)


def test_the_first_answer_of_12_288_gpus_takes_two_seconds() -> None:
    """Of one core: CPU seconds, whatever else runs. It is 0.4 to 0.5 s."""
    text = (
        'gpu = "A100-80GB"\nnodes = 1536\ngpus_per_node = 8\nnodes_per_switch = 32\n[links.switch]\n'
        "alpha_us = 8\ngbit_per_s = 200\n[links.pod]\nalpha_us = 4\ngbit_per_s = 200\n"
    )
    began = time.process_time()
    costs = CostModel(parse(text + HOST.format(250e9, 25e9)), Precision.of("bfloat16"))
    search = Search(LARGE, costs, 6144, space=Space(memory=MEMORY))
    found = search.run(lambda: search.has_found)
    assert time.process_time() - began < 2.0
    assert found.best[0].layout.world == 12288
    assert found.best[0].prediction.fits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_least_bytes_are_the_least(dtype: str) -> None:
    """A wide layer whose states are large beside its activations."""
    model, costs = Transformer(8, 8192, 64, 1024, 2048), CostModel(cluster(4, 8), Precision.of(dtype))
    for family in families(model, costs.cluster, 32, Space(micro_batch_sizes=(1, 4))):
        for layout in family.members(model, Space(micro_batch_sizes=(1, 4), schedules=("1f1b", "chimera", "zbv"))):
            assert costs.least_bytes(model, layout) <= costs.predict(model, layout).fullest.total * (1 + 1e-9)


def test_states_that_the_host_has_no_room_for() -> None:
    host = "[host]\nmemory_bytes = {}\nbytes_per_s = 20e9\n"
    space = Space(memory=("states",), zero=(0,))
    text = 'gpu = "A100"\nnodes = 2\ngpus_per_node = 4\n[links.switch]\ngbit_per_s = 200\n'
    assert Search(SMALL, CostModel(parse(text + host.format(1e12))), 16, space=space).run().best
    with pytest.raises(NothingFits, match="no schedule takes"):
        Search(SMALL, CostModel(parse(text + host.format(1e3))), 16, space=space).run()
    with pytest.raises(UsageError, match=r"give the cluster \[host\]"):
        Search(SMALL, CostModel(parse(text)), 16, space=space)


def test_floors_are_floors_and_do_their_work() -> None:
    costs, space, members = CostModel(cluster(4, 8)), Space(micro_batch_sizes=(1,)), 0
    for family in families(SMALL, costs.cluster, 32, space):
        for layout in family.members(SMALL, space):
            prediction = costs.predict(SMALL, layout)
            members += 1
            assert costs.floor(SMALL, layout) <= prediction.step_s * (1 + 1e-9)
            assert costs.floor(SMALL, layout, with_schedule=True) <= prediction.step_s * (1 + 1e-9)
            assert costs.least_bytes(SMALL, layout) <= prediction.fullest.total * (1 + 1e-9)
    found = Search(SMALL, costs, 32, space=space, kept=3).run()
    assert found.counts["predicted"] < 0.8 * members


def test_an_answer_comes_at_once_and_the_same_search_goes_on() -> None:
    search = Search(SMALL, CostModel(cluster()), 16)
    first = search.run(lambda: True)
    assert len(first.best) == 1
    assert not first.is_complete
    assert 0 < first.floor_s <= first.best[0].prediction.step_s
    last = search.run()
    assert last.is_complete
    assert last.best == Search(SMALL, CostModel(cluster()), 16).run().best
    assert last.best[0].prediction.step_s <= first.best[0].prediction.step_s


@dataclass
class Timed(CostModel):
    """A prediction takes a second."""

    now: int = 0

    def predict(self, model: Transformer, layout: Layout) -> Prediction:
        self.now += 1
        return super().predict(model, layout)


@pytest.mark.parametrize("goal", ["time", "memory"])
def test_time_that_is_up_ends_a_search_with_what_it_has_found(goal: Goal) -> None:
    def best(seconds: float) -> tuple[list[Ranked], bool, int]:
        costs = Timed(cluster(2, 4, gbit=1.0))
        found = Search(SMALL, costs, 32, goal, Space(micro_batch_sizes=(1, 4))).run(lambda: costs.now >= seconds)
        return list(found.best), found.is_complete, costs.now

    everything, is_complete, spent = best(math.inf)
    assert is_complete
    assert spent > 40
    before: list[Ranked] = []
    for seconds in (0, 1, 2, 5, 10, 20, 40):
        found, is_complete, spent = best(seconds)
        assert spent == max(1, seconds), "it ends behind the layout with which time is up"
        assert not is_complete
        assert found == best(seconds)[0], "the same in the same time"
        if before:
            assert found[0].key(goal) <= before[0].key(goal), "no worse with more time"
        assert found[0].key(goal) >= everything[0].key(goal)
        before = found


def test_a_number_of_nodes_that_divides_nothing_leaves_some_idle() -> None:
    model = replace(SMALL, layers=6)
    with pytest.raises(NothingFits, match=r"16 samples .* 28 devices and 4 heads: 4 of 7 nodes would do"):
        Search(model, CostModel(cluster(7, 4)), 16, space=Space(tp=(1, 2, 4), pp=(1, 2)))
    found = Search(model, CostModel(cluster(7, 4)), 16, space=Space(pp=(1, 2), idle_nodes=3)).run()
    assert found.best[0].layout.world == 16


def test_a_model_that_is_too_large_is_refused_with_what_would_do() -> None:
    with pytest.raises(
        NothingFits, match=r"no layout fits in 80 GB a device: .* needs \d+ GB or more; 8 nodes like these would do"
    ):
        Search(LARGE, CostModel(cluster(1, 8, "A100-80GB")), 8, space=Space(zero=(1, 0))).run()


def test_what_else_must_be_true() -> None:
    search = Search(SMALL, CostModel(cluster()), 16, allows=lambda layout: layout.zero == 3 or layout.dp == 1)
    assert all(one.layout.zero == 3 or one.layout.dp == 1 for one in search.run().best)
    with pytest.raises(NothingFits, match="no schedule takes 16 samples"):
        Search(SMALL, CostModel(cluster()), 16, allows=lambda layout: False).run()


@pytest.mark.parametrize(
    ("space", "line"),
    [
        ({"schedules": ("fast",)}, "schedules 'fast' is not known"),
        ({"zero": (4,)}, "zero '4' is not known"),
        ({"recompute": ("some",)}, "recompute 'some'"),
        ({"pp": (0,)}, "pp 0: 1 or more"),
    ],
)
def test_what_can_not_vary_so(space: dict[str, tuple[object, ...]], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        Space(**space)  # type: ignore[arg-type]


def test_reasons_name_what_takes_longer() -> None:
    found = Search(SMALL, CostModel(cluster(gbit=1.0)), 16).run()
    best = found.best[0]
    assert why(best, best)
    for one in found.best[1:]:
        text = why(one, best)
        slower = one.prediction.step_s / best.prediction.step_s - 1
        assert text == "as fast" or text.startswith(f"{slower:+.1%}")
