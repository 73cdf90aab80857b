"""Messages that have arrived leave the sender's memory: it holds those of micro-batches that are under way."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import Zygote

pytestmark = pytest.mark.aside


@pytest.mark.parametrize("schedule", ["1f1b", "axonn"])
def test_a_sender_holds_what_is_under_way(zygote: Zygote, tiny: list[str], tmp_path: Path, schedule: str) -> None:
    values = ["model.layers=2", "train.micro_batches=12", f"parallel.schedule={schedule}"]
    argv = [*tiny, "--pp", "2", *(word for value in values for word in ("--set", value))]
    done = zygote.run("outgoing:alive", 2, tmp_path, args={"argv": argv})
    assert done["exits"] == [0, 0]
    first, last = done["results"]
    assert len(first) == 12
    # After a backward no more are under way than the first stage lets in.
    assert max(first) <= (2 if schedule == "1f1b" else 4)
    assert first[-1] == 0
    assert last == [0] * 12
