"""What an optimizer has: kept bit for bit, or refused by name when the Checkpointer is made. Never lost."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kept import UNKEPT, Unkept, restored, save
from states import blank, dicts, entries, same
from torch import nn

from holdfast.base.errors import UsageError
from holdfast.checkpoint import Checkpointer

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")


def trained(states: list[Any], group: dict[Any, Any]) -> dict[str, Any]:
    """A model, and an optimizer with such a state of its two parameters and such entries in its group."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD([{"params": list(model.parameters()), **group}])
    for param, state in zip(model.parameters(), states, strict=True):
        optimizer.state[param] = state
    return {"m": model, "a.b": optimizer}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(entries(), min_size=2, max_size=2), dicts())
def test_optimizers_come_back_as_they_were(states: list[Any], group: Any) -> None:
    group = {f"our {key}" if type(key) is str else key: one for key, one in group.items()}
    with tempfile.TemporaryDirectory() as folder:
        save(folder, **trained(states, group))
        back = restored(folder, **trained([blank(one) for one in states], blank(group)))
    optimizer = back["a.b"]
    for param, state in zip(back["m"].parameters(), states, strict=True):
        found = optimizer.state[param]
        assert type(found) is type(state)
        # The order of a parameter's state is that in which this run's optimizer made it.
        assert same({key: found[key] for key in state}, {**state})
        assert len(found) == len(state)
    (ours,) = optimizer.param_groups
    assert same({key: one for key, one in ours.items() if key not in {"params", *optimizer.defaults}}, group)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["x", "y.z", 3, (1, 2)]), st.sampled_from(UNKEPT), entries(st.integers()), st.booleans())
def test_what_an_optimizer_cannot_keep_is_refused_by_name(key: Any, bad: Any, rest: Any, is_in_group: bool) -> None:
    state, says = bad
    given, where = {**rest, key: state}, ["a.b", "param_groups", 0] if is_in_group else ["a.b", "state", "bias"]
    with tempfile.TemporaryDirectory() as folder:
        with pytest.raises(UsageError) as reported:
            Checkpointer(f"{folder}/store", trained([{}, {} if is_in_group else given], given if is_in_group else {}))
        assert not (Path(folder) / "store").exists()
    line = str(reported.value)
    assert line.startswith(".".join(map(str, [*where, key])))
    assert says in line
    assert line.isprintable()


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({Unkept(): 1}, "o.state.weight has a key of type"),
        ({float("nan"): 1}, "o.state.weight has a key that is not equal to itself (nan)"),
        (5, "o.state.weight is a int: a parameter's state is a dict"),
    ],
)
def test_states_of_parameters_that_are_refused(tmp_path: Path, state: Any, says: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.state[model.weight] = state
    with pytest.raises(UsageError) as reported:
        Checkpointer(str(tmp_path / "store"), {"m": model, "o": optimizer}, rng=False)
    assert str(reported.value).startswith(says)


@pytest.mark.parametrize(
    ("key", "says"),
    [("k", "'k', which is"), (0, "0, which is"), ("weight", "'weight', which is"), (torch.ones(1), "a tensor that is")],
)
def test_state_of_no_parameter_is_refused(tmp_path: Path, key: Any, says: str) -> None:
    """torch has positions and names in one table: 0 would be the first parameter's, and "weight" too."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.state[key] = {"n": 1}
    with pytest.raises(UsageError, match=f"o.state has an entry for {says} none of its parameters"):
        Checkpointer(str(tmp_path / "store"), {"m": model, "o": optimizer}, rng=False)


def test_an_optimizers_own_way_of_loading_stays_its_own(tmp_path: Path) -> None:
    def made(n: int) -> dict[str, Any]:
        found = trained([{"n": n}, {}], {})
        found["a.b"].register_load_state_dict_post_hook(lambda o: [one.update(more=1) for one in o.state.values()])
        return found

    save(tmp_path, **made(3))
    back = restored(tmp_path, **made(0))
    assert list(back["a.b"].state.values()) == [{"n": 3, "more": 1}, {"more": 1}]


@pytest.mark.parametrize("foreach", [True, False])
def test_an_optimizer_goes_on_as_if_nothing_had_been(tmp_path: Path, foreach: bool) -> None:
    """Its state stays that of its parameters, in memory that it still steps in."""

    def made() -> dict[str, Any]:
        torch.manual_seed(1)
        model = nn.Linear(2, 1)
        return {"m": model, "o": torch.optim.AdamW(model.parameters(), lr=0.1, foreach=foreach)}

    def steps(state: dict[str, Any], count: int) -> None:
        for _ in range(count):
            state["m"](torch.ones(2)).sum().backward()
            state["o"].step()
            state["o"].zero_grad()

    straight = made()
    steps(straight, 5)
    broken = made()
    steps(broken, 3)
    save(tmp_path, **broken)
    back = restored(tmp_path, **made())
    steps(back, 2)
    assert same(dict(back["m"].state_dict()), dict(straight["m"].state_dict()))
