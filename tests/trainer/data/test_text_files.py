"""Data files are read as what they are, or refused: never are the bytes of an archive trained on."""

import gzip
import json
import zipfile
from pathlib import Path

import pytest

from holdfast.trainer.data.documents import Documents, list_sources
from holdfast.trainer.settings.config import DataConfig
from holdfast.trainer.settings.errors import ConfigError

ROWS = [{"text": "first row\nof two lines", "id": 1}, {"text": "zweite Zeile: ä", "id": 2}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def read(folder: Path, **more: object) -> list[bytes]:
    config = DataConfig(path=str(folder), **more)  # type: ignore[arg-type]
    return list(Documents(config, list_sources(config)).read())


def test_text_is_text_also_when_compressed_and_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"plain")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"packed"))
    (tmp_path / "c.md").write_bytes(gzip.compress(b"packed, too"))
    assert read(tmp_path) == [b"plain", b"packed", b"packed, too"]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.ndjson"])
def test_rows_are_documents(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(LINES) if name.endswith(".gz") else LINES + b"\n")
    assert read(tmp_path) == [row["text"].encode() for row in ROWS]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"data.column is 'body': line 1 of .*rows.* has no such text, but text, id"):
        read(tmp_path, column="body")


def test_a_table_gives_its_column(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["one", None, "three"], "n": [1, 2, 3]}), tmp_path / "t.parquet")
    assert read(tmp_path) == [b"one", b"", b"three"]
    with pytest.raises(ConfigError, match=r"data.column is 'body': .* has text, n"):
        read(tmp_path, column="body")


def test_no_more_is_unpacked_than_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b"x" * 50_000_000))
    (tmp_path / "then.txt").write_bytes(b"more")
    assert [len(one) for one in read(tmp_path, max_bytes=200_000)] == [200_000]
    (tmp_path / "bomb.txt.gz").unlink()
    (tmp_path / "many.jsonl").write_bytes(LINES * 10_000)
    assert sum(map(len, read(tmp_path, max_bytes=900_000))) < 1_300_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.zst", b"\x28\xb5\x2f\xfd1234", "is Zstandard, not text: leave it out with data.suffixes"),
        ("a.txt.xz", b"\xfd7zXZ\x00rest", "is xz, not text"),
        ("weights.npy", b"\x93NUMPY\x01\x00", "is NumPy, not text"),
        ("half.txt.gz", gzip.compress(b"packed" * 1000)[:-9], "half.txt.gz is damaged"),
        ("crc.txt.gz", gzip.compress(b"packed")[:-8] + b"12345678", "crc.txt.gz is damaged"),
        ("bad.jsonl", b'{"text": "a"}\n{"text": \n', "bad.jsonl, line 2: not JSON"),
        ("list.jsonl", b"[1]\n", "line 1 of .*list.jsonl has no such text, but list"),
        ("number.jsonl", b'{"text": 5}\n', "line 1 of .*number.jsonl has no such text"),
        ("bad.parquet", b"PAR1" + b"\xff" * 64 + b"PAR1", "bad.parquet is damaged"),
    ],
)
def test_what_is_no_text_is_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_archive_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "corpus.txt", "w") as archive:
        archive.writestr("a", "text")
    with pytest.raises(ConfigError, match="is a ZIP archive, not text"):
        read(tmp_path)
