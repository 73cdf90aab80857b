"""A run that is out of memory says what it needed, and what needs less; one that measures itself says what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from forked import Zygote

from holdfast.controller.detectors.workers.exits import exit_finding
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.trainer.__main__ import parse
from holdfast.trainer.memory import exhausted
from holdfast.trainer.memory.expected import expect
from holdfast.trainer.settings.launch import Launch
from holdfast.trainer.settings.layout import plan
from holdfast.wire import types as t
from holdfast.wire.finding_kinds import FindingKind


def test_out_of_memory_ends_with_the_table_and_what_needs_less(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    argv = [*tiny, "--pp", "2", "--steps", "3"]
    done = zygote.run("exhausting:second_step", 2, tmp_path, args={"argv": argv})
    assert done["exits"] == [0, 0]
    config = parse(argv)
    needs = expect(config, plan(config, 2, 256), 256, "cpu").needs
    for rank, found in enumerate(done["results"]):
        *table, reason = found["said"]
        assert found["code"] == 1
        assert table[-3].split()[:2] == ["ranks", "weights"]
        assert reason.startswith(f"holdfast train: rank {rank} is out of memory: it asked for 3.50 GiB more; expected ")
        flags = reason.partition("next that fits: ")[2].rpartition(" (")[0].split()
        other = parse([*argv, *flags])
        assert other != config
        assert expect(other, plan(other, 2, 256), 256, "cpu").needs < needs
        finding = _finding(rank, found["said"])
        assert finding.kind is FindingKind.WORKER_EXIT
        assert "next that fits: --set " in finding.text, "what the operator reads names the setting"


def test_a_run_reports_its_memory_beside_what_was_expected(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    argv = [*tiny, "--pp", "2", "--steps", "3", "--set", f"train.memory_path={path}"]
    done = zygote.run("tasks:train", 2, tmp_path / "run", args={"argv": argv})
    assert done["exits"] == [0, 0]
    found = json.loads(path.read_text())
    assert (found["steps"], [one["pp"] for one in found["ranks"]]) == (2, [0, 1])
    for one in found["ranks"]:
        assert one["allocated"] is None
        for kind in ("weights", "gradients", "optimizer", "activations"):
            assert abs(one["measured"][kind] / one["expected"][kind] - 1) < 0.05, kind


def test_a_full_gpu_is_offered_host_memory_for_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["--model", "gpt2", "--set", "train.dtype=bfloat16", "--set", "train.recompute=full"]
    argv += ["--set", "train.micro_batch_size=1"]  # nothing else is left that needs less
    config = parse(argv)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(exhausted, "_capacity", lambda device, launch: 1_390_000_000)
    table, reason = exhausted.explain(config, Launch(rank=0, world=1, local_rank=0), MemoryError())
    assert len(table) == 2
    flags = reason.partition("next that fits: ")[2].rpartition(" (")[0].split()
    assert flags[:2] == ["--set", "optim.state=host"]
    then = parse([*argv, *flags])
    assert then.optim.bucket < config.optim.bucket
    assert expect(then, plan(then, 1, 50257), 50257, "cuda").needs <= 1_390_000_000


def _finding(rank: int, said: list[str]) -> Finding:
    """What the controller makes of it."""
    event = t.WorkerExited("j", 1, rank, 1, 0, code=1, tail="\n".join(said))
    return exit_finding(event, "node1", Instant(100.0, 100.0))
