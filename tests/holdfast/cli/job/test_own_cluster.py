"""The cluster that `holdfast run` starts where none is named and none answers."""

from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from holdfast.cli.main import main


class Started(Exception):
    """A cluster was about to start."""


@pytest.mark.parametrize(
    ("flags", "imports"),
    [((), ()), (("--fresh",), ("--preload", "")), (("--no-python",), ("--preload", ""))],
    ids=["forks", "fresh", "no Python"],
)
def test_it_imports_ahead_only_what_its_workers_can_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: tuple[str, ...], imports: tuple[str, ...]
) -> None:
    found: dict[str, object] = {}

    def start(self: LocalCluster, *args: object, **kwargs: object) -> None:
        found.update(kwargs)
        raise Started

    monkeypatch.setattr(LocalCluster, "__init__", start)
    monkeypatch.delenv("HOLDFAST_CONTROLLER", raising=False)
    monkeypatch.setattr("holdfast.cli.job.run._answers", lambda client, must: False)  # other tests may have one there
    program = tmp_path / "train.py"
    program.write_text("#!/usr/bin/env python3\n")
    program.chmod(0o755)
    with pytest.raises(Started):
        main(["run", *flags, str(program)])
    assert found["agent_flags"] == imports
