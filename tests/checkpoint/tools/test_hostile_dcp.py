"""DCP checkpoints that are damaged or malicious: a one-line CheckpointError, and no other effect."""

from __future__ import annotations

import copyreg
import pickle
import pickletools
import shutil
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.tools import dcp as ours
from holdfast.checkpoint.tools.dcp_metadata import contents

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.distributed is:UserWarning")
STATE = {"model": {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}, "empty": torch.empty(0, 3), "note": "x"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dcp") / "sound"
    with pytest.warns(UserWarning, match=r"torch\.distributed is"):
        dcp.save(STATE, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.fixture(scope="module")
def folder(sound: Path) -> Path:
    """One to write other metadata into."""
    return Path(shutil.copytree(sound, sound.with_name("damaged")))


def read(folder: Path, content: bytes | None = None) -> tuple[dict[str, Any], str]:
    """All of it, or the line that says why not."""
    if content is not None:
        (folder / ".metadata").write_bytes(content)
    try:
        found = ours.read(folder, ours.tensors_of(folder))
    except CheckpointError as error:
        line = str(error)
    else:
        return found, ""
    assert line.startswith(str(folder))
    assert "\n" not in line
    assert len(line) < 500
    return {}, line


def changed(folder: Path, change: Callable[[Any], None]) -> str:
    metadata = pickle.loads((folder.with_name("sound") / ".metadata").read_bytes())
    change(metadata)
    found, line = read(folder, pickle.dumps(metadata))
    assert not found
    return line


def test_what_is_sound_is_read(sound: Path) -> None:
    found, line = read(sound)
    assert not line
    assert {name: held.data.tobytes() for name, held in found.items()} == {
        "model.w": STATE["model"]["w"].numpy().tobytes(),
        "model.n": STATE["model"]["n"].numpy().tobytes(),
        "empty": b"",
    }
    assert contents(sound).objects == ("note",)


def test_every_truncation(sound: Path, folder: Path) -> None:
    content = (sound / ".metadata").read_bytes()
    for length in range(len(content)):
        assert read(folder, content[:length])[1], length


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_other_bytes(sound: Path, folder: Path, data: st.DataObject) -> None:
    content = bytearray((sound / ".metadata").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    found, line = read(folder, bytes(content))
    for held in found.values():  # names may have changed, unnoticed
        assert held.data.tobytes() in (b"", STATE["model"]["w"].numpy().tobytes(), struct.pack("<q", 3))
    assert found or line


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80))
def test_random_bytes(folder: Path, content: bytes) -> None:
    for before in (b"", b"\x80\x04", b"\x80\x04ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}"):
        assert read(folder, before + content)[1]


def _deep() -> bytes:
    return b"\x80\x02" + b"(" * 200_000 + b"l" * 200_000 + b"."


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(None), pickle.dumps([1, "x"]), pickle.dumps({"a": torch.Size([2])}), _deep(),
        b"\x80\x04" + pickle.BYTEARRAY8 + struct.pack("<Q", 1 << 40) + b".",
        b"\x80\x04" + pickle.BINBYTES8 + struct.pack("<Q", 1 << 40) + b".",
        b"\x80\x04" + pickle.FRAME + struct.pack("<Q", 1 << 40) + b"N.",
        b"\x80\x02N" + pickle.LONG_BINPUT + struct.pack("<I", (1 << 32) - 1) + b".",
        b"\x80\x02" + pickle.LONG4 + struct.pack("<i", -5) + b".",
        b"\x80\x02" + pickle.PERSID + b"x\n.",
    ],
)  # fmt: skip
def test_other_pickles(folder: Path, content: bytes) -> None:
    """With no more memory than they have bytes."""
    assert read(folder, content)[1]


def test_nothing_of_torch_is_changed(folder: Path) -> None:
    """BUILD gives attributes to whatever is there: also to a class or a function that is allowed."""
    head = b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n"
    for target in (head, b"\x80\x02ctorch.serialization\n_get_layout\n"):
        state = pickletools.optimize(pickle.dumps((None, {"hurt": 1}), 2))[2:-1]
        assert "would change" in read(folder, target + state + b"b.")[1]
        state = pickletools.optimize(pickle.dumps({"hurt": 1}, 2))[2:-1]
        assert "would change" in read(folder, target + state + b"b.")[1]
    assert not hasattr(torch.serialization._get_layout, "hurt")
    assert not hasattr(dcp.Metadata, "hurt")
    copyreg.add_extension("os", "system", 0x7ABCDE)
    try:
        assert "no checkpoint needs" in read(folder, b"\x80\x02" + pickle.EXT4 + struct.pack("<i", 0x7ABCDE) + b".")[1]
    finally:
        copyreg.remove_extension("os", "system", 0x7ABCDE)


W = MetadataIndex("model.w", (0, 0))


def _of_w(metadata: Any) -> Any:
    return metadata.state_dict_metadata["model.w"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.storage_data.clear(), "is nowhere"),
        (lambda m: setattr(m, "storage_data", None), "does not say where anything lies"),
        (lambda m: setattr(m, "state_dict_metadata", [1]), "names nothing"),
        (lambda m: m.state_dict_metadata.update({3: 4}), "names nothing"),
        (lambda m: m.state_dict_metadata.update(x=OrderedDict()), "x is no tensor"),
        (lambda m: setattr(_of_w(m), "size", torch.Size([2, 4])), r"the part of model.w at [0, 3] is not there"),
        (lambda m: setattr(_of_w(m), "size", torch.Size([1 << 40, 1 << 40])), "model.w is of shape"),
        (lambda m: setattr(_of_w(m), "size", torch.Size([2])), "model.w has a part that is none of it"),
        (lambda m: setattr(_of_w(m), "size", (2, -3)), "model.w is no tensor"),
        (lambda m: setattr(_of_w(m), "size", None), "model.w is no tensor"),
        (lambda m: _of_w(m).chunks.clear(), "the part of model.w at [0, 0] is not there"),
        (lambda m: _of_w(m).chunks.append(ChunkStorageMetadata(torch.Size([2, 0]), torch.Size([1, 3]))), "none of it"),
        (lambda m: setattr(_of_w(m), "properties", TensorProperties(torch.float64)), "is not what the metadata says"),
        (lambda m: setattr(_of_w(m).properties, "dtype", torch.complex128), "model.w: tensors of torch.complex128"),
        (lambda m: setattr(_of_w(m).properties, "dtype", "float"), "model.w is of no type"),
        (lambda m: m.storage_data.update({W: _StorageInfo("../../x", 0, 9)}), "is not in the folder"),
        (lambda m: m.storage_data.update({W: _StorageInfo("/etc/passwd", 0, 9)}), "is not in the folder"),
        (lambda m: m.storage_data.update({W: _StorageInfo("gone", 0, 9)}), "No such file"),
        (lambda m: m.storage_data.update({W: _StorageInfo("__0_0.distcp", -4, 9)}), "lies at no place"),
        (lambda m: m.storage_data.update({W: _StorageInfo("__0_0.distcp", 1 << 50, 9)}), "model.w: "),
        (lambda m: m.storage_data.update({W: _StorageInfo("__0_0.distcp", 3, 900)}), "model.w: "),
        (lambda m: m.storage_data.update({W: _StorageInfo("__0_0.distcp", 0, 900, ["no.such"])}), "model.w: "),
        (lambda m: m.storage_data.update({W: m.storage_data[MetadataIndex("model.n", ())]}), "is not what the"),
    ],
)  # fmt: skip
def test_what_it_says_must_be_so(folder: Path, change: Callable[[Any], None], says: str) -> None:
    assert says in changed(folder, change)


def test_damaged_data(sound: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "dcp"))
    (file,) = folder.glob("*.distcp")
    content = file.read_bytes()
    for bad in (b"", content[: len(content) // 3], bytes(len(content)), pickle.dumps(print)):
        file.write_bytes(bad)
        assert read(folder)[1]


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    assert "there is no .metadata" in read(tmp_path)[1]
