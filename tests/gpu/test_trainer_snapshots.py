"""Snapshots of a real GPU's memory: the bytes of the moment, whatever is computed before and behind the copy."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.gpu.conftest import SCRIPTS, Start
from tests.gpu.jobs import answer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

MEGABYTES, ROUNDS = 1000, 12


def test_a_snapshot_has_the_bytes_of_its_moment(start: Start) -> None:
    free = shutil.disk_usage("/dev/shm").free
    megabytes = min(MEGABYTES, int(free / 4e6))
    print(f"\n/dev/shm has {free / 1e9:.1f} GB free")
    with tempfile.TemporaryDirectory(prefix="holdfast-gpu-", dir="/dev/shm") as folder:
        script = str(SCRIPTS / "snapshot_copies.py")
        found = answer(start(script, str(Path(folder)), str(megabytes), str(ROUNDS)), 60)
    print(f"{found['bytes'] / 1e9:.2f} GB: copied at {found['copy_gb_s']:.1f} GB/s (into torch's pinned memory "
          f"{found['plain_gb_s']:.1f}), summed at {found['sums_gb_s']:.1f} GB/s; "
          f"begin takes {found['begin_us']:.0f} us, {found['begin_most_us']:.0f} at most; "
          f"two slots prepared and pinned in {found['prepare_s']:.2f} s; "
          f"two ranges of one page: {found['two_ranges_of_a_page']}")  # fmt: skip
    assert not found["behind_an_error"], "a refused page is torch's next error"
    assert found["wrong"] == 0
    assert found["wrong_without_start"] > 0, "this test could not see a copy that begins too early"
    assert all(found["registered_before_close"]), "slots are not pinned"
    assert not any(found["registered_behind_close"]), "slots stay pinned"
    assert found["kept_steps"] == [ROUNDS + 1, ROUNDS]
    assert found["wrong_again"] == 0
