"""`holdfast checkpoint`: what it shows, what it removes, and other formats, as their own libraries read them."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from jobs import STATE, layout_of, save_all, state_of

from holdfast.checkpoint.commit.fence import claim
from holdfast.checkpoint.format.arrays import new
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.restore.inspect import find, list_checkpoints, verify
from holdfast.checkpoint.restore.restore import load_whole
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.tools.convert import write_whole
from holdfast.cli.main import main

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.distributed is:UserWarning")


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "store")
    fence = claim(store, "run-é", 2)
    for step in (10, 20, 30):
        save_all(store, fence, step, layout_of(2))
    return store


def reported(capsys: Capture, *words: str, code: int = 0) -> Any:
    assert main(["checkpoint", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def complained(capsys: Capture, *words: str) -> tuple[int, str]:
    code = main(["checkpoint", *words])
    err = capsys.readouterr().err
    assert err.startswith("holdfast: ")
    assert err.count("\n") == 1
    return code, err


def test_list_and_show(store: FileStore, capsys: Capture) -> None:
    listed = reported(capsys, "list", store.url)
    assert [(one["step"], one["job"], one["generation"]) for one in listed] == [(n, "run-é", 2) for n in (30, 20, 10)]
    shown = reported(capsys, "show", store.url, "--step", "20")
    assert (shown["step"], shown["mesh"], shown["state"]) == (20, {"dp": 2}, STATE)
    assert shown["values"] == {"applied": 20}
    assert shown["tensors"]["w"] == {"dtype": "F32", "shape": [300, 7], "bytes": 8400, "shards": 2}
    assert sum(shown["parts"].values()) == listed[1]["num_bytes"]
    assert main(["checkpoint", "show", store.url]) == 0
    out = capsys.readouterr().out
    assert "step 30, step-00000030-t0001" in out
    assert "model.layers = 2" in out
    assert "300x7" in out


def test_verify(store: FileStore, capsys: Capture) -> None:
    assert reported(capsys, "verify", store.url) == {"step": 30, "problems": []}
    part = store.root / "step-00000030-t0001" / "part-00001.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 8
    part.write_bytes(content)
    found = reported(capsys, "verify", store.url, code=1)
    assert found["problems"] == ["step-00000030-t0001/part-00001.safetensors is corrupt within MiB 0"]


def test_prune_and_protect(store: FileStore, capsys: Capture) -> None:
    assert main(["checkpoint", "protect", store.url, "--step", "10"]) == 0
    assert capsys.readouterr().out == "step-00000010-t0001 is protected\n"
    gone = reported(capsys, "prune", store.url, "--keep", "1", "--dry-run")
    assert gone == {"removed": ["step-00000020-t0001"], "dry_run": True}
    assert [one.step for one in list_checkpoints(store.url)] == [30, 20, 10]
    reported(capsys, "prune", store.url, "--keep", "1")
    assert [one.step for one in list_checkpoints(store.url)] == [30, 10]
    assert main(["checkpoint", "protect", store.url, "--step", "10", "--off"]) == 0
    capsys.readouterr()
    assert reported(capsys, "prune", store.url, "--keep", "1", "--keep-every", "10")["removed"] == []
    assert reported(capsys, "prune", store.url, "--keep", "1")["removed"] == ["step-00000010-t0001"]


def test_export_to_dcp_loads_with_stock_torch_and_comes_back(store: FileStore, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "dcp"
    assert reported(capsys, "export", store.url, str(folder), "--to", "dcp", "--step", "20")["step"] == 20
    place = {
        "w": torch.empty(300, 7),
        "w@exp_avg": torch.empty(300, 7, dtype=torch.bfloat16),
        "n": torch.empty((), dtype=torch.int64),
    }
    dcp.load(place, checkpoint_id=folder, no_dist=True)
    whole = state_of(20)
    for name, tensor in place.items():
        assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == whole[name].tobytes()
    other = FileStore(tmp_path / "other")
    answer = reported(capsys, "import", str(folder), other.url, "--step", "7")
    assert (answer["step"], answer["tensors"], answer["left_out"]) == (7, 5, [])
    slot, manifest = find(other)
    assert slot.step == 7
    again = load_whole(other, slot, manifest, manifest.tensors)
    assert again.keys() == whole.keys()
    assert all(np.array_equal(again[name].data, whole[name]) for name in whole)


def test_progress_is_reported_within_a_part(tmp_path: Path) -> None:
    store, seen = FileStore(tmp_path), list[tuple[int, int]]()
    tensor = GlobalTensor("w", (20, 1 << 18), "F32")  # of 20 MiB
    write_whole(store, 1, {"w": new(tensor, tensor.shard)}, {}, {}, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (tensor.num_bytes, tensor.num_bytes)
    assert seen == sorted(seen)
    seen.clear()
    assert verify(store.url, 1, lambda done, total: seen.append((done, total))) == []
    (size,) = {total for _, total in seen}
    assert [done for done, _ in seen] == [0, 8 << 20, 16 << 20, size]


def test_import_leaves_out_what_is_no_tensor(tmp_path: Path, capsys: Capture) -> None:
    state = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "step": 3, "notes": {"a": [1]}}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert main(["checkpoint", "import", str(tmp_path / "dcp"), str(tmp_path / "store"), "--step", "3"]) == 0
    said = capsys.readouterr()
    assert said.err == "holdfast: left out what is no tensor: notes.a, step\n"
    _, manifest = find(FileStore(tmp_path / "store"))
    assert list(manifest.tensors) == ["model.w"]


def test_metadata_that_would_run_something_is_refused(tmp_path: Path, capsys: Capture) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Evil()))
    code, err = complained(capsys, "import", str(tmp_path / "dcp"), str(tmp_path / "store"), "--step", "1")
    assert code == 2
    assert "which no checkpoint needs" in err
    assert not (tmp_path / "ran").exists()


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    at = content.index(b"state_dict_metadata")
    return content[:at] + b"X" + content[at + 1 :]


@pytest.mark.parametrize("damage", [cut, flipped, lambda content: b"", lambda content: b"\0" * len(content)])
def test_damaged_metadata_is_bad_input_in_one_line(
    tmp_path: Path, capsys: Capture, damage: Callable[[bytes], bytes]
) -> None:
    dcp.save({"w": torch.arange(6.0)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    metadata = tmp_path / "dcp" / ".metadata"
    metadata.write_bytes(damage(metadata.read_bytes()))
    words = ("import", str(tmp_path / "dcp"), str(tmp_path / "store"), "--step", "1")
    code, err = complained(capsys, *words)
    assert code == 2
    assert str(metadata) in err
    assert not (tmp_path / "store").exists()


def test_metadata_of_a_size_that_no_memory_has_is_not_read(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "dcp").mkdir()
    with open(tmp_path / "dcp" / ".metadata", "wb") as file:
        file.truncate(1 << 40)
    code, err = complained(capsys, "import", str(tmp_path / "dcp"), str(tmp_path / "store"), "--step", "1")
    assert code == 2
    assert "more than 1 GiB" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["show", "{store}", "--step", "5"], 1, "no checkpoint of step 5"),
        (["list", "s3://bucket/x"], 2, "no such scheme 's3'"),
        (["prune", "{store}", "--keep", "0"], 2, "--keep"),
        (["prune", "{store}"], 2, "--keep"),
        (["protect", "{store}", "--step", "11"], 1, "no checkpoint of step 11"),
        (["export", "{store}", "{full}", "--to", "dcp"], 2, "is not empty"),
        (["export", "{store}", "{new}", "--to", "zip"], 2, "--to"),
        (["export", "{store}", "{new}", "--to", "hf"], 2, "was not written by holdfast train"),
        (["import", "{full}", "{store}", "--step", "1"], 2, "is no DCP checkpoint"),
        (["import", "{new}", "{store}", "--step", "x"], 2, "--step"),
    ],
)
def test_bad_input_is_one_line(
    store: FileStore, tmp_path: Path, capsys: Capture, words: list[str], code: int, says: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    places = {"store": store.url, "full": str(tmp_path / "full"), "new": str(tmp_path / "new")}
    found, err = complained(capsys, *(word.format(**places) for word in words))
    assert found == code
    assert says in err


def test_a_store_that_does_not_answer_is_said_to_be_waited_for(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("holdfast.cli.job.checkpoint._PATIENCE_S", 0.0)
    for asked in ("reach", "check_there"):  # it is there, and slow
        monkeypatch.setattr(f"holdfast.checkpoint.stores.reach.{asked}", lambda url: None)
    answered = threading.Event()

    def list_slowly(url: str, report: Any) -> list[Any]:
        assert answered.wait(10)
        return []

    monkeypatch.setattr("holdfast.checkpoint.restore.inspect.list_checkpoints", list_slowly)
    monkeypatch.setattr("holdfast.cli.common.output.note", lambda text: (notes.append(text), answered.set()))
    notes: list[str] = []
    assert main(["checkpoint", "list", "hdfs://nobody:8020/c"]) == 0
    assert notes == ["waiting for an answer from hdfs://nobody:8020/c"]
    assert "no checkpoints in hdfs://nobody:8020/c" in capsys.readouterr().out
