"""Lines of click logs: what is read from them, and what is refused."""

from __future__ import annotations

import itertools
import math
import os
from pathlib import Path

import pytest

from holdfast.base.errors import UsageError
from holdfast.trainer.embeddings.criteo import CATEGORIES, batches, files_of, parse, samples, write_zipf

GOOD = ["1", "5", "-2", "", *["0"] * 10, "68fd1e64", "", "FF", *["00000000"] * 23]


def line(**changed: str) -> str:
    fields = list(GOOD)
    for at, text in changed.items():
        fields[int(at.removeprefix("f"))] = text
    return "\t".join(fields)


def test_a_line_is_label_numbers_and_one_key_of_each_table() -> None:
    sample = parse(line())
    assert sample.label == 1
    assert sample.numbers == (math.log(6), 0.0, 0.0, *[0.0] * 10)
    tables, values = zip(*(divmod(key, 1 << 33) for key in sample.keys), strict=True)
    assert tables == tuple(range(26))
    assert values[:4] == (0x68FD1E64, 1 << 32, 0xFF, 0)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1\t2", "2 fields: a line has 40"),
        (line() + "\t", "41 fields"),
        (line(f0="2"), "label '2': 0 or 1"),
        (line(f3="1.5"), "number 3 is '1.5'"),
        (line(f3="--1"), "number 3 is '--1'"),
        (line(f3="9" * 19), "number 3"),
        (line(f14="0x10"), "category 1 is '0x10'"),
        (line(f39="123456789"), "category 26 is '123456789'"),
    ],
)
def test_a_wrong_line_is_refused_with_its_field(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what.replace(".", r"\.")):
        parse(text)


def test_file_and_line_of_a_wrong_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(line() + "\n" + line() + "\r\n")
    (tmp_path / "b").write_text(line() + "\nnothing\n")
    with pytest.raises(UsageError, match="b, line 2: 1 fields"):
        list(samples(files_of(tmp_path)))
    (tmp_path / "b").write_bytes(b"\xff\n")
    with pytest.raises(UsageError, match="b, line 1: not ASCII"):
        list(samples(files_of(tmp_path)))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gone: not a file"):
        files_of(tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="a folder without files"):
        files_of(tmp_path / "empty")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe: not a file"):
        files_of(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b"1" * (1 << 17))
    with pytest.raises(UsageError, match="a line of 65,536 bytes"):
        files_of(tmp_path / "long")
    (tmp_path / "nothing").touch()
    with pytest.raises(UsageError, match="no samples"):
        next(batches([tmp_path / "nothing"], 1))


def test_batches_go_on_with_the_first_sample_and_begin_at_any_number(tmp_path: Path) -> None:
    write_zipf(tmp_path / "clicks", 5, 10, seed=1)
    once = list(samples([tmp_path / "clicks"]))
    assert len(once) == 5
    found = list(itertools.islice(batches([tmp_path / "clicks"], 3), 4))
    assert [sample for batch in found for sample in batch] == (once * 3)[:12]
    assert list(itertools.islice(batches([tmp_path / "clicks"], 3, first=2), 2)) == found[2:]


def test_few_values_are_in_most_samples(tmp_path: Path) -> None:
    write_zipf(tmp_path / "clicks", 200, 100, seed=1)
    keys = [key for sample in samples([tmp_path / "clicks"]) for key in sample.keys]
    # By Zipf's law over 100 values the first has 1 / H(100) = 0.193 of all.
    share = sum(key % (1 << 33) == 0 for key in keys) / (200 * CATEGORIES)
    assert share == pytest.approx(1 / sum(1 / n for n in range(1, 101)), abs=0.02)
