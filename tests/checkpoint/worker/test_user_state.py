"""What a user's objects have: kept bit for bit, or refused by name when the Checkpointer is made. Never lost."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kept import UNKEPT, Thing, restored, save
from states import blank, dicts, same, states
from threads import ThreadGroup, on_ranks
from torch import nn

from holdfast.base.errors import UsageError
from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.checkpointer import _require_same_places
from holdfast.checkpoint.errors import CheckpointError, CheckpointMismatch
from holdfast.checkpoint.format.parts import header
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.format.worker_state import merged, of_worker
from holdfast.checkpoint.restore.inspect import find
from holdfast.checkpoint.stores.opening import open_store
from holdfast.checkpoint.worker.plain_data import EntryPlace, join, name_all, split
from holdfast.checkpoint.worker.user_state import UserState
from holdfast.plan.tiles import TensorShard

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(dicts())
def test_what_is_accepted_comes_back_as_it_was(state: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save(folder, **{"a.b": Thing(state)})
        back = restored(folder, **{"a.b": Thing(blank(state))})["a.b"].loaded
        assert same(back, state)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(states(), st.sampled_from(["s", "a.b"]))
def test_json_and_tensors_are_all_of_it(state: Any, name: str) -> None:
    leaves: list[Any] = []
    tree = split(state, EntryPlace.of(name), leaves)
    name_all(leaves)
    assert len({leaf.name for leaf in leaves}) == len(leaves)
    # As it stands in a manifest, whose objects are sorted.
    text = json.dumps(tree, sort_keys=True, allow_nan=False)
    assert same(join(json.loads(text), {leaf.name: leaf.value for leaf in leaves}), state)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["x", "y.z", 3]), max_size=3), st.sampled_from(UNKEPT), states(st.integers()))
def test_what_is_not_is_refused_by_name_at_once(keys: list[Any], bad: Any, rest: Any) -> None:
    state, says = bad
    for key in reversed(keys):
        state = {"before": rest, key: state}
    with tempfile.TemporaryDirectory() as folder:
        with pytest.raises(UsageError) as reported:
            Checkpointer(f"{folder}/store", {"thing": Thing(state)}, rng=False)
        assert not (Path(folder) / "store").exists()
    line = str(reported.value)
    assert line.startswith(".".join(["thing", *map(str, keys)]))
    assert says in line
    assert line.isprintable()
    assert len(line) < 400


@pytest.mark.parametrize(
    "state",
    [
        {"a.b": torch.ones(2), "a": {"b": torch.zeros(2)}},
        {1: torch.ones(2), "1": torch.zeros(2), 1.5: torch.ones(2), "1.5": np.ones(1), b"1": torch.ones(1)},
        {"a": [torch.ones(2)], "a.0": torch.zeros(2), "a\\.0": torch.ones(3), "a\\\\.0": torch.ones(4)},
        {"": {"": torch.ones(1)}, ".": torch.zeros(1), None: torch.ones(2), "None": torch.zeros(2)},
        {"\ud83d\ude00": torch.ones(1), "\U0001f600": torch.zeros(1)},
    ],
)
def test_entries_of_one_name_keep_apart(tmp_path: Path, state: Any) -> None:
    save(tmp_path, s=Thing(state))
    assert same(restored(tmp_path, s=Thing(blank(state)))["s"].loaded, state)


def test_objects_and_keys_of_one_name_keep_apart(tmp_path: Path) -> None:
    x, y = torch.ones(2), torch.zeros(2)
    model = nn.ModuleDict({"b": nn.Linear(1, 1)})
    save(tmp_path, **{"s.a": Thing({"b": x}), "s": Thing({"a": {"b": y}}), "m": model, "m.b": Thing({"weight": x})})
    fresh = nn.ModuleDict({"b": nn.Linear(1, 1)})
    back = restored(
        tmp_path,
        **{"s.a": Thing({"b": y + 7}), "s": Thing({"a": {"b": x + 7}}), "m": fresh, "m.b": Thing({"weight": y + 7})},
    )
    assert same(back["s.a"].loaded, {"b": x})
    assert same(back["s"].loaded, {"a": {"b": y}})
    assert same(back["m.b"].loaded, {"weight": x})
    assert torch.equal(fresh["b"].weight, model["b"].weight)


def test_names_are_read_as_before_wherever_one_has_them_alone(tmp_path: Path) -> None:
    """What was written by earlier versions stays readable: each name with dots where no other entry has it."""
    ema = {"shadow": {"layer.0.weight": torch.ones(3)}, 7: torch.ones(1), "l": [np.ones(2)]}
    save(tmp_path, ema=Thing(ema), model=nn.Linear(1, 1))
    names = find(open_store(str(tmp_path)))[1].tensors.keys()
    assert names == {"ema.shadow.layer.0.weight", "ema.7", "ema.l.0", "model.weight", "model.bias"}


@pytest.mark.parametrize("keys", [["b", "a"], ["a", "b"]])
def test_dicts_keep_their_order(tmp_path: Path, keys: list[str]) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    state = {"deep": [{key: {k: 1 for k in keys} for key in keys}]}
    save(tmp_path, s=Thing(state), model=model, optimizer=optimizer)
    assert same(restored(tmp_path, s=Thing({}), model=model, optimizer=optimizer)["s"].loaded, state)


def test_a_checkpoint_of_an_earlier_version(tmp_path: Path) -> None:
    """Its JSON, as `split` made it then: a module's other state without the places of tensors in dicts."""
    whole = {"m.scale": torch.full((2,), 3.0), "m._extra_state.inner.t": torch.ones(2), "s.t": torch.ones(1)}
    values = {
        "m": {"_extra_state": {"inner": {"n": 4}}},
        "s": {"$": "dict", "is": [[3, {"$": "tuple", "is": [1, {"$": "float", "is": "inf"}]}],
                                  ["t", {"$": "tensor", "at": "s.t"}]]},
    }  # fmt: skip

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.inner = nn.Parameter(torch.zeros(2)), {"t": torch.zeros(2), "n": 0}

        def get_extra_state(self) -> Any:
            return {"inner": self.inner}

        def set_extra_state(self, state: Any) -> None:
            self.inner = state["inner"]

    from holdfast.checkpoint.tools.convert import write_whole
    from holdfast.checkpoint.worker.torch_state import of_local, place

    held = {name: of_local(*place(name, one), one) for name, one in whole.items()}
    write_whole(open_store(str(tmp_path)), 1, held, {}, values)
    back = restored(tmp_path, m=Module(), s=Thing({3: None, "t": torch.zeros(1)}))
    assert same(back["s"].loaded, {3: (1, float("inf")), "t": torch.ones(1)})
    assert same(back["m"].scale.data, torch.full((2,), 3.0))
    assert back["m"].inner["n"] == 4
    assert same(back["m"].inner["t"], torch.ones(2))


def test_extra_state_of_modules_is_kept(tmp_path: Path) -> None:
    class Module(nn.Module):
        def __init__(self, extra: Any) -> None:
            super().__init__()
            self.extra = extra

        def get_extra_state(self) -> Any:
            return self.extra

        def set_extra_state(self, state: Any) -> None:
            self.extra = state

    extra = OrderedDict(b=(torch.ones(2), {"x": np.arange(3), "a": 1}), a=Counter({3: 1}))
    save(tmp_path, m=Module(extra))
    assert same(restored(tmp_path, m=Module(blank(extra)))["m"].extra, extra)


def test_plain_tensors_are_filled_in_place(tmp_path: Path) -> None:
    given = {
        "plain": torch.arange(6.0),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "conj": torch.tensor([1 + 2j]).conj(),
        "neg": torch.tensor([1 + 2j]).conj().imag,
        "leaf": torch.ones(2, requires_grad=True),
    }
    save(tmp_path, **given)
    fresh = {
        "plain": torch.zeros(6), "turned": torch.zeros(2, 3).T, "conj": torch.zeros(1, dtype=torch.complex64).conj(),
        "neg": torch.zeros(1, dtype=torch.complex64).conj().imag, "leaf": torch.zeros(2, requires_grad=True),
    }  # fmt: skip
    restored(tmp_path, **fresh)
    for name, one in given.items():
        assert same(fresh[name], one), name


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (torch.zeros(1).expand(3), "t.value has elements that share memory, as expand makes them"),
        (torch.zeros(4).as_strided((3, 2), (1, 1)), "t.value has elements that share memory"),
        (torch.eye(2).to_sparse(), "t.value is sparse"),
        (torch.zeros(2, device="meta"), "t.value is on the meta device"),
        (nn.LazyLinear(2), "t.weight has no shape yet"),
        (nn.Linear(2, 2, device="meta"), "t.weight is on the meta device"),
    ],
)
def test_what_cannot_be_filled_is_refused(tmp_path: Path, one: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Checkpointer(str(tmp_path / "store"), {"t": one}, rng=False)
    buffered = nn.Module()
    buffered.register_buffer("b", torch.zeros(1).expand(3))
    with pytest.raises(UsageError, match=r"t\.b has elements that share memory"):
        Checkpointer(str(tmp_path / "store"), {"t": buffered}, rng=False)
    assert not (tmp_path / "store").exists()


def test_read_only_memory_is_never_written_to(tmp_path: Path) -> None:
    save(tmp_path, s=Thing({"a": np.arange(4)}))
    text = bytes(32)
    assert same(restored(tmp_path, s=Thing({"a": np.frombuffer(text, np.int64)}))["s"].loaded, {"a": np.arange(4)})
    assert text == bytes(32)


def test_tensors_that_share_memory_now_and_did_not_then(tmp_path: Path) -> None:
    """As the best weights do, that are the current ones until there are better ones."""
    save(tmp_path, s=Thing({"best": torch.ones(3), "now": torch.full((3,), 2.0), "tail": torch.full((2,), 3.0)}))
    one = torch.zeros(3)
    back = restored(tmp_path, s=Thing({"best": one, "now": one, "tail": one[1:]}))["s"].loaded
    assert same(back, {"best": torch.ones(3), "now": torch.full((3,), 2.0), "tail": torch.full((2,), 3.0)})


def test_names_that_we_have_ourselves(tmp_path: Path) -> None:
    for name, says in (("workers", "cannot be called 'workers'"), (3, "cannot be called 3"), ("a\nb", "cannot be")):
        with pytest.raises(UsageError, match=says):
            Checkpointer(str(tmp_path), {name: Thing({})}, rng=False)  # type: ignore[dict-item]
    with pytest.raises(UsageError, match=r"worker\.00003\.rng is called as one worker's own state is"):
        Checkpointer(str(tmp_path), {"worker": Thing({"00003": {"rng": torch.ones(1)}})}, rng=False)
    with pytest.raises(UsageError, match="the name rng is reserved for the random generators"):
        Checkpointer(str(tmp_path), {}, own={"rng": Thing({})})


def test_settings_are_json(tmp_path: Path) -> None:
    for bad in ({"lr": float("nan")}, {"f": len}, {"d": {1: 2}}, {1: 2}):
        with pytest.raises(UsageError, match=f"settings: '{next(iter(bad))}' is not JSON"):
            Checkpointer(str(tmp_path), {"s": Thing({})}, rng=False, settings=bad)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
    for _ in range(2):
        checkpointer = Checkpointer(str(tmp_path), {"s": Thing({})}, rng=False, settings={"sizes": (1, 2)})
        checkpointer.restore()
        checkpointer.step(1)
        checkpointer.close()


def test_what_the_state_has_no_more_or_not_yet(tmp_path: Path) -> None:
    save(tmp_path, s=Thing({"a": torch.ones(1), "b": torch.ones(1)}))
    with pytest.raises(CheckpointError, match=r"s\.b is in the checkpoint, but not in this run's state"):
        restored(tmp_path, s=Thing({"a": torch.ones(1)}))
    with pytest.raises(CheckpointMismatch, match=r"s\.c is not there"):
        restored(tmp_path, s=Thing({"a": torch.ones(1), "b": torch.ones(1), "c": torch.ones(1)}))


def test_own_state_of_another_shape_is_named(tmp_path: Path) -> None:
    def checkpointer(size: int) -> Checkpointer:
        return Checkpointer(str(tmp_path), {}, own={"loader": Thing({"seen": torch.ones(size)})}, rng=False)

    one = checkpointer(3)
    one.step(1)
    one.close()
    with pytest.raises(CheckpointError, match=r"loader\.seen is in the checkpoint, but"):
        checkpointer(4).restore()


def test_the_order_of_tensors_stays_whatever_that_of_a_dict_does() -> None:
    """Snapshots in memory distinguish shards by their order: a tensor would be another one's from then on."""
    x, y = torch.ones(2), torch.zeros(2)
    thing = Thing({"x": x, "y": y})
    state = UserState({"s": thing}, {}, 0)
    first, _ = state.capture()
    thing.state = {"y": y, "x": x}
    again, _ = state.capture()
    assert [(name, local.data_ptr()) for name, (_, _, local) in again.items()] == [
        (name, local.data_ptr()) for name, (_, _, local) in first.items()
    ]


def test_what_only_one_side_has_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, s=Thing({"n": 1}), ema=Thing({"n": 2}))
    checkpointer = Checkpointer(str(tmp_path), {"s": Thing({})}, own={"loader": Thing({})}, rng=False)
    assert checkpointer.restore() == 1
    assert capsys.readouterr().err == (
        "holdfast: ema is in the checkpoint only, loader is not in the checkpoint and begins anew\n"
    )


def test_workers_values_differ_also_by_type() -> None:
    values = [{"a": 1, "b": 0.0, "c": [True]}, {"a": 1.0, "b": -0.0, "c": [1]}, {"a": 1, "b": 0.0, "c": [True]}]
    job = merged(dict(enumerate(values)))
    for worker, theirs in enumerate(values):
        assert json.dumps(of_worker(job, worker)) == json.dumps(theirs)


def test_names_in_a_part_are_all_different() -> None:
    whole, other = GlobalTensor("w", (4,), "F32"), GlobalTensor("w[0:2]", (2,), "F32")
    head, _ = header(
        {"w": whole, "w[0:2]": other, "__metadata__": GlobalTensor("__metadata__", (), "U8")},
        [("w", TensorShard((0,), (2,))), ("w[0:2]", other.shard), ("__metadata__", TensorShard((), ()))],
        {"format": "pt"},
    )
    table = json.loads(head[8:])
    assert table.pop("__metadata__") == {"format": "pt"}
    assert table.keys() == {"w[0:2]", "w[0:2]'", "__metadata__'"}


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ([{"s.a.b": "s.a.b"}, {"s.a.b": "s.a.b"}], ""),
        ([{"s.a.b": "s.a\\.b"}, {"s.a.b": "s.a\\.b"}, {}], ""),
        ([{"s.a.b": "s.a.b"}, {"s.a.b": "s.a\\.b"}], "s.a.b is "),
        ([{"s.1": "s.\\:1"}, {"s.2": "s.2"}, {"s.1": "s.1"}], "s.1 is "),
        ([{"s.1": "s.\\:1"}, {"s.1": "s.\\:true"}], "s.1 is "),
    ],
)
def test_a_name_is_that_of_one_entry_on_all_workers(places: list[dict[str, str]], says: str) -> None:
    def meet(group: ThreadGroup) -> str:
        try:
            _require_same_places(group, places[group.rank])
        except UsageError as error:
            return str(error)
        return ""

    reported = on_ranks(len(places), meet)
    assert all(bool(line) is bool(says) for line in reported)
    assert any(says in line for line in reported)
