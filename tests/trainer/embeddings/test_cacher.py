"""The cacher's replies to trainers, without sockets: which iterations it keeps, and what it counts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clicks import data_of, expected_fetches, run_of

from holdfast.base.errors import HoldfastError, ProtocolError
from holdfast.trainer.embeddings.batch import Batch, decode
from holdfast.trainer.embeddings.cacher import Cacher
from holdfast.trainer.embeddings.criteo import write_zipf
from holdfast.trainer.embeddings.plans import share
from holdfast.trainer.embeddings.servers.link import Message
from holdfast.trainer.embeddings.settings import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """8 batches of 8 samples for 2 trainers."""
    write_zipf(tmp_path / "clicks", 64, 40, seed=2)
    return run_of(tmp_path / "clicks", steps=8, batch=8, lookahead=3)


def request(**head: object) -> Message:
    nothing: Any = np.zeros(0)
    return Message(dict(head), nothing, nothing)


def replied(cacher: Cacher, trainer: int, number: int) -> Batch:
    return decode(Message(*cacher.serve(request(trainer=trainer, number=number))))


def test_each_trainer_gets_its_samples_of_each_batch(run: Run) -> None:
    cacher, data = Cacher(run), data_of(run)
    for number, trainer in itertools.product(range(8), range(2)):
        found = replied(cacher, trainer, number)
        own = [data[number][at] for at in share(8, 2, trainer)]
        assert (found.number, found.size) == (number, 8)
        assert found.keys.tolist() == [list(sample.keys) for sample in own]
        assert found.labels.tolist() == [sample.label for sample in own]


def test_an_iteration_is_kept_until_all_trainers_are_behind_it(run: Run) -> None:
    cacher = Cacher(run)
    first = replied(cacher, 0, 0).keys.tolist()
    for number in range(1, 5):
        replied(cacher, 0, number)
    # The other one has received nothing yet; a reply may be lost, and be asked for again.
    assert replied(cacher, 0, 4).number == 4
    assert replied(cacher, 1, 0).number == 0
    assert replied(cacher, 0, 0).keys.tolist() == first
    assert replied(cacher, 1, 3).number == 3
    for gone in range(3):  # 3 is the least that both may still ask for
        with pytest.raises(ProtocolError, match=f"there is no iteration {gone}"):
            replied(cacher, 1, gone)
    assert [replied(cacher, trainer, number).number for trainer in (0, 1) for number in (3, 4)] == [3, 4, 3, 4]


def test_there_is_none_behind_the_last(run: Run) -> None:
    cacher = Cacher(run)
    with pytest.raises(ProtocolError, match="there is no iteration 8"):
        replied(cacher, 0, 8)
    went_on = Cacher(run_of(Path(run.data[0]), steps=8, batch=8, first=5))
    assert replied(went_on, 0, 5).keys.tolist() == [list(one.keys) for one in data_of(run)[5][:4]]
    assert replied(went_on, 1, 7).number == 7
    with pytest.raises(ProtocolError, match="there is no iteration 8"):
        replied(went_on, 1, 8)


@pytest.mark.parametrize("head", [{}, {"trainer": 2, "number": 0}, {"trainer": "x", "number": 0}, {"trainer": 0}])
def test_requests_that_are_none(run: Run, head: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match="a request that is none"):
        Cacher(run).serve(request(**head))


def test_data_that_is_gone_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "clicks").unlink()
    with pytest.raises(HoldfastError, match="clicks: No such file"):
        replied(Cacher(run), 0, 0)


@pytest.mark.parametrize("lookahead", [1, 3, 8])
def test_rows_are_planned_as_often_as_the_formula_says(run: Run, lookahead: int) -> None:
    cacher = Cacher(run_of(Path(run.data[0]), steps=8, batch=8, lookahead=lookahead))
    replied(cacher, 0, 7)
    figures = cacher.serve(request(do="figures"))
    expected = expected_fetches(data_of(run), lookahead)
    assert figures == {"formula": expected, "planned": expected, "lookahead": [lookahead, lookahead, lookahead, 0]}


def test_a_fitted_window_keeps_to_its_rows_and_to_the_formula(run: Run) -> None:
    """40 categories a table: two batches always fit in 10,000 rows, and no more than one in a single row."""
    for rows in (1, 10_000):
        fitted = Cacher(run_of(Path(run.data[0]), steps=8, batch=8, lookahead=0, cache_rows=rows))
        replied(fitted, 0, 7)
        figures = fitted.serve(request(do="figures"))
        assert figures["planned"] == figures["formula"]
        size, least, most, halvings = figures["lookahead"]
        assert least <= size <= most
        if rows == 1:
            # Every batch is refused until it is needed: each row is fetched for each batch.
            assert figures["planned"] == expected_fetches(data_of(run), 1)
            assert (least, halvings > 0) == (1, True)
        else:
            assert figures["planned"] == expected_fetches(data_of(run), 8)
            assert halvings == 0
