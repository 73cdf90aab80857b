"""The checkpoint that the demo leaves, as transformers loads it: straight from its store, and by way of DCP."""

import re
from pathlib import Path

import pytest

from holdfast.trainer.weights.weights import newest
from tests.e2e.daemons import Commands
from tests.trainer.support.theirs import continuations, difference

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_demos_checkpoint_in_transformers(holdfast: Commands, tmp_path: Path) -> None:
    def run(*argv: str, deadline_s: float = 120.0) -> str:
        done = holdfast.run(*argv, deadline_s=deadline_s)
        assert done.process.returncode == 0, done.err[-6000:]
        return done.err

    said = run("demo", "--nproc", "2", "--steps", "20", "--state-dir", str(tmp_path / "state"), deadline_s=280.0)
    found = re.search(r"the checkpoints are in (file://\S+)", said)
    assert found is not None, said
    store, other = found[1], (tmp_path / "other").as_uri()
    run("checkpoint", "export", store, str(tmp_path / "out"), "--to", "hf")
    run("checkpoint", "export", store, str(tmp_path / "dcp"), "--to", "dcp")
    run("checkpoint", "import", str(tmp_path / "dcp"), other, "--step", "20")
    run("checkpoint", "export", other, str(tmp_path / "by-dcp"), "--to", "hf")

    trained = newest(store)
    assert trained.step == 20
    for folder in (tmp_path / "out", tmp_path / "by-dcp"):
        assert difference(folder, trained) < 1e-5
        theirs, ours = continuations(folder, trained, 40)
        assert theirs == ours
