"""`holdfast memory`: tables, JSON, what fits, what it refuses, and real ranks beside it."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.main import main

Capture = pytest.CaptureFixture[str]
SMALL = ["memory", "--set", "model.layers=4", "--set", "train.micro_batch_size=4", "--schedule", "gpipe", "--pp", "2"]


def answer(capsys: Capture, *words: str) -> dict[str, object]:
    assert main([*SMALL, *words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_every_rank_by_kind_and_adds_up(capsys: Capture) -> None:
    found = answer(capsys)
    assert [found[key] for key in ("pp", "dp", "tp", "limit_bytes", "fits", "measured")] == [2, 1, 1, None, None, None]
    ranks = found["ranks"]
    assert isinstance(ranks, list)
    for rank in ranks:
        total = rank.pop("total")
        assert set(rank) == {"weights", "gradients", "optimizer", "activations", "gathered", "buffers", "chunks"}
        assert sum(rank.values()) == total
        assert all(value >= 0 for value in rank.values())
    assert found["device"] == "cuda"
    assert found["reserve_bytes"] == 2 * 10**9


def test_the_first_that_fits_is_the_cheapest_that_does(capsys: Capture) -> None:
    needs = answer(capsys)["needs_bytes"]
    assert isinstance(needs, int)
    found = answer(capsys, "--reserve", "1MB", "--limit", str(needs + 10**6 - 1))
    assert found["fits"] is False
    others = found["alternatives"]
    assert isinstance(others, list)
    assert [one["seconds"] for one in others] == sorted(one["seconds"] for one in others)
    first = [one for one in others if one["is_first"]]
    assert len(first) == 1
    assert first[0]["needs_bytes"] < needs
    assert not any(one["fits"] for one in others[: others.index(first[0])])
    assert answer(capsys, "--reserve", "1MB", "--limit", str(needs + 10**6))["fits"] is True


def test_optimizer_states_in_host_memory_are_said_apart(capsys: Capture) -> None:
    assert answer(capsys)["host_bytes"] == [0, 0]
    host = ["--set", "optim.state=host"]
    first, second = answer(capsys, *host)["host_bytes"]  # type: ignore[misc]
    # Two float32 averages: half of the layers each, of 12 d^2 and a norm, and the table, or the last norm and the head.
    assert (first, second) == (8 * (2 * 12 * 128**2 + 2 * 128 + 256 * 128), 8 * (2 * 12 * 128**2 + 3 * 128 + 256 * 128))
    assert main([*SMALL, *host]) == 0
    assert "optimizer states in host memory: 3.4 MB on the rank with the most" in capsys.readouterr().out


def test_the_table_marks_the_fullest_ranks_and_what_to_set(capsys: Capture) -> None:
    assert main([*SMALL, "--dp", "2", "--zero", "1", "--set", "parallel.device=cpu", "--limit", "9MB"]) == 0
    out = capsys.readouterr().out
    head, *lines = out.splitlines()
    assert head.split() == [
        "RANKS",
        "WEIGHTS",
        "GRADIENTS",
        "OPTIMIZER",
        "ACTIVATIONS",
        "GATHERED",
        "BUFFERS",
        "CHUNKS",
        "TOTAL",
    ]
    assert sum(line.rstrip().endswith(" most") for line in lines) == 1
    assert {line.split()[0] for line in lines[:2]} == {"0-1", "2-3"}
    assert "in 9.0 MB" in out
    assert "chosen" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--limit", "much"], "--limit must be a size such as 80GB"),
        (["--limit", "1GB"], "of which 2.0 GB are kept back"),
        (["--reserve", "-1"], "--reserve must be a size"),
        (["--tp", "3"], "is not divisible by tp"),
        (["--model", "gpt-9"], "--model is 'gpt-9', which is not known"),
        (["--traffic"], "takes settings only"),
        (["--set", "train.micro_batches=1048576"], "at most are simulated"),
        (["--dp", "1048576", "--set", "train.micro_batches=1048576"], "ranks at most"),
        (["--nonsense"], "--nonsense"),
        (["--dp", "16", "--set", "train.micro_batches=32", "--measure"], "16 at most"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str, capsys: Capture) -> None:
    assert main([*SMALL, *words]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_without_torch_it_names_the_extra(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else real(name))
    assert main(SMALL) == 2
    assert capsys.readouterr().err == "holdfast: this needs torch: pip install 'holdfast[trainer]'\n"


@pytest.mark.slow
def test_measured_ranks_hold_what_was_expected(capsys: Capture) -> None:
    found = answer(capsys, "--measure")["measured"]
    assert isinstance(found, dict)
    for one in found["ranks"]:
        for kind in ("weights", "gradients", "optimizer", "activations"):
            assert one["measured"][kind] == pytest.approx(one["expected"][kind], rel=0.05), kind
