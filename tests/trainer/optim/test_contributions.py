"""Partial backwards: who goes back through what, and that the means are those of whole backwards (SPB)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Zygote
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Reference
from safetensors.torch import load_file
from torch import Tensor

from holdfast.trainer.__main__ import parse
from holdfast.trainer.data.corpus import open_corpus
from holdfast.trainer.optim.contributions import Contributions
from holdfast.trainer.settings.config import Config
from tests.trainer.run.test_restart import losses, strike

pytestmark = pytest.mark.aside

ROLES = st.integers(1, 6).flatmap(
    lambda k: st.builds(Contributions, st.just(k), st.integers(1, 4).map(lambda m: m * k), st.integers(k, 20))
)


@settings(deadline=None)
@given(ROLES, st.integers(0, 1000))
def test_each_section_has_contributors_and_everyone_else_one_sender(roles: Contributions, step: int) -> None:
    everyone = set(range(roles.replicas))
    for section in range(1, roles.parts + 1):
        having, receivers = roles.contributors(section, step), roles.receivers(section, step)
        assert len(having) == roles.replicas // roles.parts * (roles.parts - section + 1)
        assert set(having) | receivers.keys() == everyone
        assert not set(having) & receivers.keys()
        loads = [list(receivers.values()).count(source) for source in having]
        assert max(loads) - min(loads) <= 1
        # One direction only: two ranks never wait for each other's sections.
        assert all(roles.role(source, step) > roles.role(to, step) for to, source in receivers.items())


@settings(deadline=None)
@given(ROLES, st.integers(0, 1000))
def test_a_replica_goes_back_through_all_that_it_contributes(roles: Contributions, step: int) -> None:
    for replica in range(roles.replicas):
        role, first = roles.role(replica, step), roles.without_way_back(replica, step)
        assert first < roles.layers
        mine = {layer for layer in range(roles.layers) if roles.section_of(f"layers.{layer}.norm.weight") <= role}
        assert mine == set(range(first, roles.layers))
        assert (roles.section_of("embed.weight") <= role) == (first == 0)
        assert roles.section_of("head.norm.weight") == 1
    # In as many steps as there are roles each replica has had them all.
    had = [{roles.role(replica, step + later) for later in range(roles.parts)} for replica in range(roles.replicas)]
    assert all(one == set(range(1, roles.parts + 1)) for one in had)


@pytest.mark.parametrize(("parts", "share"), [(1, 1.0), (2, 0.75), (4, 0.625)])
def test_the_share_of_backward_is_the_papers(parts: int, share: float) -> None:
    assert Contributions(parts, parts, 8).share() == share


def whole_gradients(config: Config, step: int, dp: int) -> list[dict[str, Tensor]]:
    """Of each replica's own micro-batches, through all layers."""
    oracle = Reference(config, open_corpus(config.data))
    count = config.train.micro_batches // dp
    found = []
    for replica in range(dp):
        for number in range(replica * count, (replica + 1) * count):
            x, y = oracle.batches.read(step, range(number, number + 1))
            torch.autograd.backward(oracle._loss(torch.from_numpy(x), torch.from_numpy(y), step, number) / count)
        found.append({name: one.grad.clone() for name, one in oracle.p.items() if one.grad is not None})
        oracle.forget()
    return found


CASES: dict[str, tuple[int, int, list[str]]] = {
    "4 of 4": (4, 4, []),
    "2 of 4, serial, recomputed": (4, 2, ["model.block=serial", "train.recompute=full", "model.norm=layer"]),
    "3 of 3, cells, five layers": (3, 3, ["train.recompute=cell", "model.layers=5", "model.positions=learned"]),
}


def arguments(tiny: list[str], dp: int, parts: int, more: list[str]) -> list[str]:
    values = [
        *("model.layers=4", "parallel.zero=0", f"parallel.partial_backward={parts}", f"train.micro_batches={2 * dp}"),
        *("train.dtype=float64", *more),
    ]
    return [*tiny, "--dp", str(dp), *(word for value in values for word in ("--set", value))]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_means_are_those_of_whole_backwards(zygote: Zygote, tiny: list[str], tmp_path: Path, case: str) -> None:
    dp, parts, more = CASES[case]
    argv = arguments(tiny, dp, parts, more)
    count = parts + 1
    config = parse(argv)
    roles = Contributions(parts, dp, config.model.layers)
    done = zygote.run("contributing:steps", dp, tmp_path, args={"argv": argv, "count": count})
    assert done["exits"] == [0] * dp
    for step in range(count):
        each = whole_gradients(config, step, dp)
        names = set(each[0])
        for rank in range(dp):
            grads = load_file(tmp_path / f"grads-{step}-{rank}.safetensors")
            assert grads.keys() == names
            for name, grad in grads.items():
                having = roles.contributors(roles.section_of(name), step)
                expected = sum(each[r][name] for r in having) / len(having)
                assert float((grad - expected).norm() / expected.norm()) < 1e-12, (step, rank, name)
            own = {name for name in names if roles.role(rank, step) >= roles.section_of(name)}
            assert set(done["results"][rank]["own"][step]) == own


@pytest.mark.slow
def test_backward_takes_five_eighths(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    """Of a layer's 12 h^2 elements each takes 2 FLOPs a token forward and 4 backward, as the head's h V do."""
    argv = arguments(tiny, 4, 4, ["train.micro_batches=4"])  # products that add to a gradient are not counted
    config = parse(argv)
    done = zygote.run("contributing:steps", 4, tmp_path, args={"argv": argv, "count": 1})
    tokens, h = config.data.seq_len, config.model.d_model
    layers, head = 2 * tokens * 12 * h * h * 4, 2 * tokens * h * 256
    # On a CPU attention's own products are not counted.
    flops = sum(result["flops"][0] for result in done["results"]) / 4
    assert flops == pytest.approx(layers + 0.625 * 2 * layers + 3 * head)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kill_and_restore(zygote: Zygote, tiny: list[str], tmp_path: Path, dtype: str) -> None:
    argv = arguments(tiny, 4, 4, [])
    argv += ["--set", f"train.dtype={dtype}", "--set", "model.dropout=0.1"]
    strike(zygote, argv, tmp_path, victim=2, world=4)


@pytest.mark.slow
def test_all_replicas_stay_alike_and_learn(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    argv = [*arguments(tiny, 4, 2, ["train.dtype=float32"]), "--steps", "30", "--set", "optim.lr=0.01"]
    done: dict[str, Any] = zygote.run("train", 4, tmp_path, args={"argv": argv})
    assert done["exits"] == [0] * 4
    found = losses(done)
    assert found[-1] < 0.7 * found[0]
