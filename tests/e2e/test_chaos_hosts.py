"""Real training over eight hosts in namespaces: a few faults of `benchmarks/chaos.py`, each of another kind.

The whole campaign, with its table, is the benchmark's.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cables import can_filter, missing
from tests.e2e.daemons import ROOT

WHY = missing() or ("" if can_filter() else "needs nft (nftables)")
FAULTS = ("kill", "Xid: reset the GPU", "cut from the controller")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.skipif(bool(WHY), reason=WHY)]


def test_faults_on_eight_hosts_are_found_named_and_mended(tmp_path: Path) -> None:
    pytest.importorskip("pynvml", reason="the hosts' GPUs are made of nvidia-ml-py")
    out = tmp_path / "result.json"
    words = [sys.executable, str(ROOT / "benchmarks" / "chaos.py"), "--injections", str(len(FAULTS)), "--seed", "5",
             "--quiet-seconds", "1", "--kinds", *FAULTS, "--keep", str(tmp_path / "hosts"),
             "--out", str(out)]  # fmt: skip
    env = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, env=env, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(out.read_text())
    assert sorted(one["kind"] for one in result["injections"]) == sorted(FAULTS), done.stderr[-4000:]
    for one in result["injections"]:
        right = (one["is_found"], one["is_culprit_right"], one["is_rung_right"], one["is_resumed"])
        assert right == (True, True, True, True), one
        assert not one["wrongly_evicted"], one
    assert len(result["losses"]) > 30
