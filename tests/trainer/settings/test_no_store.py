"""A job that would lose all steps is warned of when it starts."""

from types import SimpleNamespace

import pytest

from holdfast.trainer.__main__ import main


@pytest.mark.parametrize(
    ("options", "rank", "is_warned"), [([], "0", True), ([], "1", False), (["--store", "file:///tmp/none"], "0", False)]
)
def test_a_start_without_a_store_is_warned_of_once(
    options: list[str], rank: str, is_warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("holdfast.trainer.run.loop.run", lambda config, launch: SimpleNamespace(is_stored=True))
    monkeypatch.setenv("HOLDFAST_PROBE", "/dev/null")
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(options) == 0
    assert ("no checkpoint store is set" in capsys.readouterr().err) is is_warned
