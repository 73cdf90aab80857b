"""Whole runs with real processes, against plain training in this one; and runs in which a process is killed."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from clicks import data_of, expected_fetches, run_of, train

from holdfast.base.errors import HoldfastError, UsageError
from holdfast.cli.main import main
from holdfast.trainer.embeddings.criteo import write_zipf
from holdfast.trainer.embeddings.launch import Outcome, run_all
from holdfast.trainer.embeddings.processes import Exit, cause
from holdfast.trainer.embeddings.servers import snapshots
from holdfast.trainer.embeddings.settings import Run
from holdfast.trainer.embeddings.supervise import supervised

VALUES = 400
"""Of each table: most rows are fetched for one sample, a few are in all batches."""


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clicks") / "clicks.tsv"
    write_zipf(path, 240, VALUES, seed=5)
    return path


def tables_of(url: str, run: Run) -> dict[int, np.ndarray]:
    """The rows in the run's last snapshot."""
    keys, rows = snapshots.load_share(url, run.steps, run.spec, 0, 1).copy()
    return dict(zip(keys.tolist(), rows, strict=True))


def check(outcome: Outcome, run: Run, url: str) -> None:
    """Fetches and bytes by formula, and the tables those of plain training: to the last bit where gradients are added
    up in the same parts, to 1e-12 where not."""
    expected = expected_fetches(data_of(run), run.lookahead)
    assert outcome.fetches == outcome.formula == outcome.planned == outcome.write_backs == expected
    assert outcome.fetched_bytes + outcome.written_bytes == 2 * expected * run.dim * 8
    table, model, loss = train(run, run.trainers)
    found = tables_of(url, run)
    assert found.keys() == table.keys()
    assert all(np.array_equal(found[key], row) for key, row in table.items())
    assert outcome.loss == loss
    state = torch.load(Path(url) / f"step-{run.steps:08d}" / "model.pt", weights_only=True)
    assert all(torch.equal(state[name], one) for name, one in model.state_dict().items())
    whole, _, _ = train(run, 1)
    assert max(abs(found[key] - row).max() for key, row in whole.items()) <= 1e-12
    first = train(run_of(Path(run.data[0]), steps=1), 1)[0]
    assert max(abs(found[key] - row).max() for key, row in first.items()) > 1e-3, "something was learned"


def test_a_run_is_plain_training(clicks: Path, tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    run = run_of(clicks, lookahead=2, store=url, snapshot_every=20)
    seen: dict[str, int] = {}
    outcome = run_all(run, 2, on_start=seen.update)
    check(outcome, run, url)
    assert sorted(seen) == ["cacher", "embedding server 0", "embedding server 1", "trainer 0", "trainer 1"]
    assert not any(Path(f"/proc/{pid}").exists() for pid in seen.values())
    # Rows of the next batch, by the batches themselves: their gradients are given on the critical path.
    needs = [{key for one in batch for key in one.keys} for batch in data_of(run)]
    now = sum(len(a & b) for a, b in itertools.pairwise(needs))
    assert outcome.sync_now_bytes == now * run.dim * 8


@pytest.mark.slow
@pytest.mark.parametrize(("lookahead", "trainers", "servers"), [(10, 3, 2), (1, 1, 1), (50, 1, 1)])
def test_runs_of_other_shapes_are_too(
    clicks: Path, tmp_path: Path, lookahead: int, trainers: int, servers: int
) -> None:
    """More trainers than servers, one of each; every batch for itself, and more batches than there are."""
    url = str(tmp_path / "store")
    run = run_of(clicks, lookahead=lookahead, trainers=trainers, store=url, snapshot_every=20)
    check(run_all(run, servers), run, url)


@pytest.mark.slow
def test_rows_with_a_state_do_not_depend_on_how_the_work_is_shared_out(clicks: Path, tmp_path: Path) -> None:
    found = []
    for lookahead, trainers, servers in ((1, 2, 1), (10, 2, 2)):
        url = str(tmp_path / f"{lookahead}-{trainers}-{servers}")
        run = run_of(
            clicks,
            lookahead=lookahead,
            trainers=trainers,
            store=url,
            snapshot_every=20,
            optimizer="rowwise-adagrad",
            lr=0.05,
        )
        outcome = run_all(run, servers)
        assert outcome.is_exact
        assert outcome.fetched_bytes + outcome.written_bytes == 2 * outcome.fetches * (run.dim + 1) * 8
        found.append(tables_of(url, run))
    assert all(np.array_equal(found[1][key], row) for key, row in found[0].items())
    table, _, loss = train(run, 1)
    for one in found:
        assert one.keys() == table.keys()
        assert max(abs(one[key] - row).max() for key, row in table.items()) <= 1e-12
    assert abs(outcome.loss - loss) <= 1e-12
    assert min(row[-1] for row in table.values()) > 0


@pytest.mark.slow
def test_a_lookahead_that_fits_a_cache(clicks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["train-embeddings", "--data", str(clicks), "--batch", "16", "--dtype", "float64", "--dim", "4"]
    words += ["--trainers", "2", "--seed", "3", "--lr", "0.5", "--store", str(tmp_path / "s"), "--steps", "40"]
    # Two batches may need 2 x 16 x 26 = 832 rows; about six of these do.
    assert main([*words, "--lookahead", "auto", "--cache-rows", "832", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["is_exact"]
    assert found["peak_rows"] <= 832
    assert found["halvings"] > 0
    assert 1 <= found["lookahead_least"] < found["lookahead_most"] <= 10
    run = run_of(clicks, steps=40)
    data = data_of(run)
    assert expected_fetches(data, found["lookahead_most"]) <= found["fetches"]
    assert found["fetches"] <= expected_fetches(data, found["lookahead_least"])
    table = train(run, 2)[0]
    rows = tables_of(str(tmp_path / "s"), run)
    assert all(np.array_equal(rows[key], row) for key, row in table.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "optimizer", "trainers"),
    [
        ("trainer 1", "sgd", 2),
        ("cacher", "sgd", 1),
        ("embedding server 0", "rowwise-adagrad", 1),
    ],
)
def test_after_a_kill_all_begin_again_from_the_newest_snapshot(
    clicks: Path, tmp_path: Path, name: str, optimizer: str, trainers: int
) -> None:
    """The tables are those of plain training: no update is lost, and none is there twice.

    No trainer gets beyond the first part of the data before the kill, however late that comes: the cacher waits for
    whoever writes the second part.
    """
    url = str(tmp_path / "store")
    early, late, whole = (tmp_path / name for name in ("early", "late", "whole"))
    early.write_text(3 * clicks.read_text())  # 45 batches
    whole.write_text(clicks.read_text())
    os.mkfifo(late)
    seen: dict[str, int] = {}
    killed: list[int] = []
    lines: list[str] = []

    def on_step(step: int, loss: float) -> None:
        if step == 30 and not killed:
            whole.rename(late)
            killed.append(seen[name])
            os.kill(seen[name], signal.SIGKILL)

    changed = {"lookahead": 5, "snapshot_every": 7, "keep": 2, "optimizer": optimizer, "trainers": trainers}
    run = replace(run_of(early, steps=63, store=url, **changed), data=[str(early), str(late)])
    outcome = supervised(run, lambda one: run_all(one, 2, on_step=on_step, on_start=seen.update), 1, lines.append)
    (line,) = lines
    begun = re.fullmatch(rf"{name} \(pid {killed[0]}\) was killed by SIGKILL; restart 1 of 1 from step ([0-9]+)", line)
    assert begun is not None
    first = int(begun[1])
    assert 0 < first <= 45
    assert first % 7 == 0
    assert (outcome.first, outcome.restarts) == (first, 1)
    data = data_of(run)[first:]
    expected = expected_fetches(data, 5)
    assert outcome.fetches == outcome.formula == outcome.planned == expected
    # A snapshot adds what stays in the caches: rows between two uses less than five batches apart.
    needs = [{key for sample in batch for key in sample.keys} for batch in data]
    staying = sum(
        any(key in batch for batch in needs[at + 1 : last + 5])
        for at in range(6, len(needs), 7)
        for key in set().union(*needs[: at + 1])
        if (last := max(n for n in range(at + 1) if key in needs[n])) + 5 > at
    )
    assert outcome.write_backs == expected + staying
    table, _, loss = train(run, trainers)
    found = tables_of(url, run)
    assert found.keys() == table.keys()
    if optimizer == "sgd":
        assert all(np.array_equal(found[key], row) for key, row in table.items())
        assert outcome.loss == loss
    assert max(abs(found[key] - row).max() for key, row in table.items()) <= 1e-12
    assert abs(outcome.loss - loss) <= 1e-12
    assert sorted(path.name for path in Path(url).iterdir()) == ["step-00000056", "step-00000063"]
    assert not any(Path(f"/proc/{pid}").exists() for pid in (*killed, *seen.values()))


def test_of_a_death_and_its_consequences_the_death_is_reported() -> None:
    lost = Exit("trainer 0", 1, 1, "holdfast: embedding server 0 does not reply")
    dead = Exit("embedding server 0", 2, -9, "")
    wrong = Exit("trainer 1", 3, 2, "holdfast: clicks.tsv, line 3: label 'x'")
    assert str(cause([lost, wrong, dead])) == "embedding server 0 (pid 2) was killed by SIGKILL"
    assert isinstance(cause([lost, wrong]), UsageError)
    assert str(cause([lost, wrong])) == "clicks.tsv, line 3: label 'x'"
    assert str(cause([lost])) == "embedding server 0 does not reply"
    assert str(cause([Exit("cacher", 4, 1, "")])) == "cacher ended with code 1"


@pytest.mark.slow
def test_the_command_prints_what_was_fetched_and_goes_on(
    clicks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["train-embeddings", "--data", str(clicks), "--batch", "16", "--dtype", "float64", "--dim", "4"]
    words += ["--trainers", "2", "--seed", "3", "--lr", "0.5", "--lookahead", "10", "--store", str(tmp_path / "s")]
    assert main([*words, "--steps", "8", "--json"]) == 0
    found: Mapping[str, object] = json.loads(capfd.readouterr().out)
    expected = expected_fetches(data_of(run_of(clicks, steps=8)), 10)
    assert (found["fetches"], found["formula"], found["is_exact"]) == (expected, expected, True)
    assert main([*words, "--steps", "12"]) == 0
    out = capfd.readouterr().out
    assert "steps 8 to 12" in out
    data = data_of(run_of(clicks, steps=12))[8:]
    assert f"fetched (formula {expected_fetches(data, 10):,}: equal)" in out
    assert f"step 12 loss {train(run_of(clicks, steps=12), 2)[2]:.6f}" in out
    assert main([*words, "--steps", "12"]) == 2
    assert "has 12 steps already: give more than --steps 12" in capfd.readouterr().err
    assert main([*words, "--steps", "20", "--seed", "4"]) == 2
    assert "was trained with --seed 3, not 4" in capfd.readouterr().err
    assert main([*words, "--steps", "20", "--optimizer", "rowwise-adagrad"]) == 2
    assert "was trained with --optimizer sgd, not rowwise-adagrad" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ([], "give --store URL to keep snapshots"),
        (["--store", "s"], "the same command goes on from the newest snapshot"),
    ],
)
def test_what_to_do_is_in_the_line_of_a_death(
    clicks: Path,
    tmp_path: Path,
    words: list[str],
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def run_all(*args: object) -> Outcome:
        raise HoldfastError("trainer 0 (pid 7) was killed by SIGKILL")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("holdfast.trainer.embeddings.launch.run_all", run_all)
    assert main(["train-embeddings", "--data", str(clicks), "--max-restarts", "0", *words]) == 1
    assert capfd.readouterr().err == f"holdfast: trainer 0 (pid 7) was killed by SIGKILL; {advice}\n"


def test_a_server_that_is_not_there_is_one_line(
    clicks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef\n")
    words = ["--data", str(clicks), "--server", "127.0.0.1:1", "--secret-file", str(tmp_path / "secret")]
    assert main(["train-embeddings", *words]) == 1
    err = capfd.readouterr().err
    assert err == "holdfast: embedding server 0: 127.0.0.1:1 does not reply: Connection refused\n"


@pytest.mark.slow
def test_a_wrong_line_that_comes_late_ends_the_run_with_its_place(
    clicks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "late.tsv"
    path.write_text(clicks.read_text() * 5 + "oops\n")  # behind what is checked first
    assert main(["train-embeddings", "--data", str(path), "--batch", "400", "--steps", "4"]) == 2
    assert capfd.readouterr().err == f"holdfast: {path}, line 1201: 1 fields: a line has 40, with tabs between\n"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--data", "gone"], "gone: not a file; name one in Criteo's schema"),
        ([], "--data"),
        (["--optimizer", "adam"], "'adam': sgd or rowwise-adagrad"),
        (["--tables-name", "x"], "--tables-name goes with --tables"),
        (["--dtype", "int8"], "'int8': float32 or float64"),
        (["--lookahead", "0"], "--lookahead '0': a whole number from 1 to 100,000, or auto"),
        (["--cache-rows", "900"], "--cache-rows goes with --lookahead auto"),
        (["--lookahead", "auto", "--cache-rows", "831", "--batch", "16"], "2 x 16 x 26 rows; give 832 or more"),
        (["--lookahead", "auto", "--batch", "20000"], "give 1040000 or more, or a smaller --batch"),
        (["--trainers", "9", "--batch", "8"], "--trainers 9 cannot share --batch 8"),
        (["--snapshot-every", "5"], "--snapshot-every needs --store"),
        (["--server", "gpu0:many"], "write HOST:PORT"),
        (["--server", "127.0.0.1:1"], "--server needs --secret-file"),
        (["--server", "127.0.0.1:1", "--servers", "2"], "give one of the two"),
        (["--server", "127.0.0.1:1", "--server", "127.0.0.1:1", "--secret-file", "x"], "twice"),
        (["--secret-file", "x"], "--secret-file goes with --server"),
        (["--store", "ftp://x"], "no such scheme 'ftp'"),
    ],
)
def test_bad_input_is_one_line(clicks: Path, words: list[str], what: str, capfd: pytest.CaptureFixture[str]) -> None:
    data = [] if "--data" in words or not words else ["--data", str(clicks)]
    assert main(["train-embeddings", *data, *words]) == 2
    err = capfd.readouterr().err
    assert what in err
    assert err.count("\n") == 1
