import os

import pytest

from holdfast.base.cores import cores_of_rank


@pytest.mark.parametrize(
    ("ranks", "expected"), [(None, 12), ("1", 12), ("8", 1), ("5", 2), ("13", 1), ("0", 12), ("x", 12)]
)
def test_ranks_share_the_cores_of_their_host(monkeypatch: pytest.MonkeyPatch, ranks: str | None, expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    assert cores_of_rank({} if ranks is None else {"LOCAL_WORLD_SIZE": ranks}) == expected
