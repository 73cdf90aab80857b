"""Any bytes in place of a manifest: skipped with one line, and the next older one is used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import assert_step, layout_of, restore_all, save_all

from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.commit.fence import claim
from holdfast.checkpoint.errors import CheckpointError, ManifestInvalid
from holdfast.checkpoint.format.manifest import DEPTH, Manifest, decode, part_from_json
from holdfast.checkpoint.restore.inspect import find
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.folder import Slot, slots
from holdfast.cli.main import main

Capture = pytest.CaptureFixture[str]
BODY: dict[str, Any] = {
    "version": 2, "step": 30, "term": 1, "attempt": "a", "generation": 0, "job": "j", "created": 1.5,
    "mesh": {"dp": 2}, "tensors": {"w": ["F32", [4, 2]]}, "state": {"model.layers": 2}, "values": {"applied": 30},
    "parts": [{"file": "p", "bytes": 96, "sums": "0" * 16, "writer": 0, "entries": [["w", [0, 0], [4, 2], 64]]}],
}  # fmt: skip


def signed(body: Any, dump: Callable[[Any], str] | None = None) -> bytes:
    """A manifest of our form with a digest that is right, whatever is in it: as a hostile or faulty writer makes it."""
    dump = dump or (lambda value: json.dumps(value, sort_keys=True, separators=(",", ":")))
    digest = hashlib.sha256(dump(body).encode()).hexdigest()
    return dump({"format": "holdfast-checkpoint", "sha256": digest, "manifest": body}).encode()


def deep(levels: int) -> Any:
    found: Any = 0
    for _ in range(levels):
        found = [found]
    return found


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**300, -(10**25), 1 << 63])
    | st.floats()
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, one in inner for place in places(one, (*at, key)))]


def put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = put(copy[at[0]], at[1:], new)
    return copy


def read(content: bytes) -> Manifest | None:
    try:
        return decode(content)
    except ManifestInvalid as error:
        line = str(error)
    assert line.isprintable()
    assert len(line) < 300
    return None


def test_the_one_that_is_changed_is_sound() -> None:
    assert read(signed(BODY)) is not None


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(places(BODY)), _JSON)
def test_one_thing_of_another_type(at: tuple[Any, ...], new: Any) -> None:
    found = read(signed(put(BODY, at, new)))
    if found is not None:  # what it accepts can be used
        assert all(type(one) is int for one in (found.step, found.term, found.generation, found.num_bytes))
        assert all(tensor.num_bytes >= 0 for tensor in found.tensors.values())
        json.dumps([dict(found.values), dict(found.state)], allow_nan=False)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(places(BODY)), st.integers(1, 3000))
def test_depth(at: tuple[Any, ...], levels: int) -> None:
    inner = "[" * levels + "]" * levels
    marked = json.dumps(put(BODY, at, "HERE"), sort_keys=True, separators=(",", ":"))
    body = marked.replace('"HERE"', inner)
    digest = hashlib.sha256(body.encode()).hexdigest()
    content = f'{{"format":"holdfast-checkpoint","manifest":{body},"sha256":"{digest}"}}'.encode()
    found = read(content)
    assert levels <= DEPTH or found is None


def test_the_depth_that_is_allowed() -> None:
    assert read(signed({**BODY, "values": {"x": deep(DEPTH - 1)}})) is not None
    assert read(signed({**BODY, "values": {"x": deep(DEPTH)}})) is None


@settings(max_examples=120, deadline=None)
@given(st.binary(max_size=60) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(content: bytes) -> None:
    assert read(content) is None
    for before in (b'{"format":"holdfast-checkpoint","manifest":', b"\xff\xfe", b"[" * 100_000):
        assert read(before + content) is None


@pytest.mark.parametrize(
    "text",
    ['{"a":1,"a":2}', "1e999", "-1e999", "NaN", "Infinity", "9" * 5000, "1" + "0" * 4000 + ".5", '"\\ud800"', "1.0e2"],
)
@pytest.mark.parametrize("field", ["values", "state", "created", "step", "mesh", "tensors", "parts"])
def test_odd_json(text: str, field: str) -> None:
    marked = json.dumps({**BODY, field: "HERE"}, sort_keys=True, separators=(",", ":"))
    body = marked.replace('"HERE"', text)
    digest = hashlib.sha256(body.encode()).hexdigest()
    assert read(f'{{"format":"holdfast-checkpoint","manifest":{body},"sha256":"{digest}"}}'.encode()) is None


@settings(max_examples=200, deadline=None)
@given(_JSON)
def test_parts_of_entries_in_the_store(value: Any) -> None:
    with pytest.raises(ManifestInvalid):
        part_from_json(value)


HOSTILE = {
    "deep": signed({**BODY, "values": deep(2)}).replace(b"[[0]]", b"[" * 50_000 + b"]" * 50_000),
    "deep and signed": signed({**BODY, "values": {"x": deep(450)}}),
    "values are a list": signed({**BODY, "values": [1]}),
    "step is true": signed({**BODY, "step": True}),
    "a negative shape": signed({**BODY, "tensors": {"w": ["F32", [-4, 2]]}}),
    "a huge shape": signed({**BODY, "tensors": {"w": ["F32", [10**18, 10**18]]}}),
    "negative bytes": signed(put(BODY, ("parts", 0, "bytes"), -1)),
    "not UTF-8": b"\xff\xfe\x00{",
    "nothing": b"",
    "a huge number": b'{"format": ' + b"9" * 5000 + b"}",
}


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "store")
    fence = claim(store, "run", 0)
    for step in (10, 20, 30):
        save_all(store, fence, step, layout_of(2))
    return store


@pytest.mark.parametrize("what", HOSTILE)
def test_restore_takes_the_next_older_one(store: FileStore, capsys: Capture, what: str) -> None:
    (store.root / "step-00000030-t0001" / "manifest.json").write_bytes(HOSTILE[what])
    found, warnings = restore_all(store, layout_of(2))
    assert_step(found, 20, layout_of(2))
    (line,) = warnings
    assert line.startswith("checkpoint passed over: step-00000030-t0001: manifest: ")
    assert line.isprintable()
    assert main(["checkpoint", "list", store.url, "--json"]) == 0
    out, err = capsys.readouterr()
    assert [one["step"] for one in json.loads(out)] == [20, 10]
    assert err.startswith("holdfast: checkpoint passed over: step-00000030-t0001: manifest: ")
    assert err.count("\n") == 1
    assert main(["checkpoint", "show", store.url, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["step"] == 20
    assert err.count("\n") == 1
    assert main(["checkpoint", "verify", store.url, "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["step"] == 20
    (problem,) = json.loads(out)["problems"]
    assert problem.startswith("step-00000030-t0001: manifest: ")
    for command in ("show", "verify"):
        assert main(["checkpoint", command, store.url, "--step", "30"]) == 1
        out, err = capsys.readouterr()
        assert "step-00000030-t0001: manifest: " in out + err
        assert "Traceback" not in err


def test_where_none_is_whole_training_does_not_begin_anew(store: FileStore) -> None:
    for slot in slots(store):
        (store.root / slot.folder / "manifest.json").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"none of the 3 checkpoints in .* is whole"):
        restore_all(store, layout_of(2))


def test_names_of_folders(store: FileStore) -> None:
    for name in ("step-000000030-t0001", "step-٠٠٠٠٠٠٤٠-t0001", "step-" + "9" * 200 + "-t0001"):
        (store.root / name).mkdir()
    assert [slot.step for slot in slots(store)] == [30, 20, 10]
    assert find(store)[0] == Slot(30, 1)


class Thing:
    def __init__(self) -> None:
        self.loaded: Any = None

    def state_dict(self) -> Any:
        return {"t": torch.zeros(1), "n": 0}

    def load_state_dict(self, state: Any) -> None:
        self.loaded = state


@pytest.mark.parametrize(
    "tree",
    [
        {"$": "no such tag"}, {"$": ["a"]}, {"$": "dict", "is": 3}, {"$": "tensor"}, {"$": "array", "at": 4},
        {"$": "dict", "is": [[[], 1]]}, {"$": "scalar", "type": "object_", "is": ""}, {"$": "bytes", "is": "x"},
        {"$": "array", "at": "s.t", "type": "|O", "shape": [1]}, {"$": "Size", "is": ["x"]}, {"$": "float", "is": {}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["s", "m", "o", "b"])
def test_values_that_no_run_wrote_are_passed_over(tmp_path: Path, capsys: Capture, tree: Any, name: str) -> None:
    model = torch.nn.Linear(1, 1)
    state = {"s": Thing(), "m": model, "o": torch.optim.SGD(model.parameters(), momentum=0.9), "b": torch.ones(1)}
    checkpointer = Checkpointer(str(tmp_path), state, every=1, rng=False)
    for step in (1, 2):
        checkpointer.step(step)
    checkpointer.close()
    path = tmp_path / "step-00000002-t0001" / "manifest.json"
    body = json.loads(path.read_bytes())["manifest"]
    body["values"][name] = {"x": tree} if name == "m" else tree
    path.write_bytes(signed(body))
    fresh = Checkpointer(str(tmp_path), state, every=1, rng=False)
    assert fresh.restore() == 1
    fresh.close()
    assert capsys.readouterr().err.count("checkpoint passed over: step-00000002-t0001: ") == 1
