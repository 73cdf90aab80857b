"""Samples in the schema of Criteo's click logs: label, 13 whole numbers, 26 categories in hexadecimal, tabs between.

The files are the user's (Criteo's licence forbids to pass them on); `write_zipf` makes some of the same shape.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.errors import UsageError
from holdfast.base.plain import plain
from holdfast.trainer.embeddings.servers.keys import MISSING, key

NUMBERS, CATEGORIES = 13, 26
FIELDS = 1 + NUMBERS + CATEGORIES
MOST_LINE = 1 << 16
"""Bytes of a line; a real one has about 250."""


@dataclass(frozen=True, slots=True)
class Sample:
    label: int
    """1: clicked, 0: not."""
    numbers: tuple[float, ...]
    """`NUMBERS` of them, as the model takes them: ln(1 + x), 0 for missing and negative ones."""
    keys: tuple[int, ...]
    """`CATEGORIES` of them, one of each table."""


def parse(line: str) -> Sample:
    """The sample in a line without its end. ValueError says which field is wrong, and what would be right."""
    fields = line.split("\t")
    if len(fields) != FIELDS:
        raise ValueError(f"{len(fields)} fields: a line has {FIELDS}, with tabs between")
    if fields[0] not in ("0", "1"):
        raise ValueError(f"label {fields[0][:20]!r}: 0 or 1")
    numbers = [_number(text, place) for place, text in enumerate(fields[1 : 1 + NUMBERS], 1)]
    keys = [key(table, _category(text, table)) for table, text in enumerate(fields[1 + NUMBERS :])]
    return Sample(int(fields[0]), tuple(numbers), tuple(keys))


def _number(text: str, place: int) -> float:
    if not text:
        return 0.0
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise ValueError(f"number {place} is {text[:20]!r}: a whole number, or empty")
    return math.log1p(max(0, int(text)))


def _category(text: str, table: int) -> int:
    if not text:
        return MISSING
    if len(text) > 8 or not set(text) <= set("0123456789abcdefABCDEF"):
        raise ValueError(f"category {table + 1} is {text[:20]!r}: at most 8 hexadecimal digits, or empty")
    return int(text, 16)


def files_of(data: Path) -> list[Path]:
    """The file, or the files of the folder in the order of their names. UsageError where there is none."""
    try:
        found = sorted(path for path in data.iterdir() if path.is_file()) if data.is_dir() else [data]
        if not found:
            raise UsageError(f"--data {plain(data)}: a folder without files; name a file in Criteo's schema")
        for path in found:
            if not path.is_file():
                raise UsageError(f"--data {plain(path)}: not a file; name one in Criteo's schema, or a folder of such")
        _ = next(_lines(found[0]), None)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UsageError(f"--data {plain(data)[:300]}: {plain(reason)}; name a file in Criteo's schema") from None
    return found


def samples(files: Sequence[Path]) -> Iterator[Sample]:
    """All samples of the files, in order, once. UsageError names file and line of one that is wrong."""
    for path in files:
        for number, line in enumerate(_lines(path), 1):
            try:
                yield parse(line.decode("ascii").rstrip("\r\n"))
            except ValueError as error:
                reason = "not ASCII" if isinstance(error, UnicodeDecodeError) else str(error)
                raise UsageError(f"{plain(path)}, line {number}: {plain(reason)}") from None


def batches(files: Sequence[Path], size: int, first: int = 0) -> Iterator[list[Sample]]:
    """Batches of `size` samples without an end, from number `first` on: after the last sample the first one follows.

    UsageError when there is no sample.
    """
    source = _forever(files)
    for _ in itertools.islice(source, first * size):
        pass
    while True:
        yield list(itertools.islice(source, size))


def _forever(files: Sequence[Path]) -> Iterator[Sample]:
    while True:
        count = 0
        for count, sample in enumerate(samples(files), 1):  # noqa: B007  # the count of a whole pass is asked for
            yield sample
        if not count:
            raise UsageError(f"{plain(files[0])}: no samples; name a file in Criteo's schema")


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(MOST_LINE):
            if len(line) == MOST_LINE:
                raise UsageError(f"{plain(path)}: a line of {MOST_LINE:,} bytes; name a file in Criteo's schema")
            yield line


def write_zipf(path: Path, count: int, values: int, seed: int, exponent: float = 1.0) -> None:
    """Write `count` samples whose categories are drawn by Zipf's law from `values` of each table: few are in most
    samples, as in logs of clicks. The label follows from the first number, so that there is something to learn."""
    rng = random.Random(seed)
    weights = [(rank + 1) ** -exponent for rank in range(values)]
    with path.open("w") as out:
        for _ in range(count):
            numbers = [rng.randrange(100) for _ in range(NUMBERS)]
            drawn = rng.choices(range(values), weights, k=CATEGORIES)
            label = int(numbers[0] + rng.randrange(20) > 60)
            out.write("\t".join([str(label), *map(str, numbers), *(f"{value:08x}" for value in drawn)]) + "\n")
