"""A user's script with three more lines: killed and started again, it gives the same results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.base.errors import UsageError
from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.format.worker_state import differing, of_worker
from holdfast.checkpoint.restore.inspect import find
from holdfast.checkpoint.stores.opening import open_store
from tests.checkpoint.support.daemons import ROOT, DaemonProcess, until
from tests.trainer.support.forked import Zygote

pytestmark = [pytest.mark.slow, pytest.mark.calm]

SCRIPT = "tests.checkpoint.support.user_scripts:train"


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    warm = Zygote()
    yield warm
    warm.close()


@pytest.fixture
def nodes() -> Iterator[list[DaemonProcess]]:
    """Two nodes' daemons, with memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="holdfast-test-") as root:
        found = []
        for name in ("n0", "n1"):
            (Path(root) / name).mkdir()
            found.append(DaemonProcess(Path(root) / name, name))
        yield found
        for daemon in found:
            daemon.close()
            daemon.log.unlink(missing_ok=True)


def run(zygote: Zygote, world: int, folder: Path, **job: Any) -> dict[str, Any]:
    top = {key: job.pop(key) for key in ("kill", "generation", "number") if key in job}
    done = zygote.run(SCRIPT, world, folder, args=job, deadline_s=60.0, **top)
    if "kill" not in top:
        assert done["exits"] == [0] * world
    return done


@pytest.mark.parametrize(("kind", "world", "other"), [("ddp", 2, 1), ("fsdp2", 2, 4)])
def test_a_killed_script_goes_on_bit_for_bit(zygote: Zygote, tmp_path: Path, kind: str, world: int, other: int) -> None:
    store = str(tmp_path / "store")
    undisturbed = run(zygote, world, tmp_path / "whole", kind=kind, store=f"{store}-whole", steps=8)["results"]
    run(zygote, world, tmp_path / "struck", kind=kind, store=store, steps=8, mark=True, kill={world - 1: 7})
    copies = {name: f"{store}-{name}" for name in ("same", "other")}
    for copy in copies.values():
        subprocess.run(["cp", "-r", store, copy], check=True)
    # Another seed: whatever is not restored shows.
    on = run(zygote, world, tmp_path / "on", kind=kind, store=copies["same"], steps=8, seed=7, generation=1)["results"]
    for before, after in zip(undisturbed, on, strict=True):
        assert (after["first"], after["source"]) == (6, "store")
        assert after["losses"] == before["losses"][6:]
        assert after["whole"] == before["whole"]
        assert after["seen"] == before["losses"][:6]
        assert after["lr"] == before["lr"]
    again = run(zygote, other, tmp_path / "ag", kind=kind, store=copies["other"], steps=6, seed=7, generation=1)
    assert [one["first"] for one in again["results"]] == [6] * other
    assert all(one["restored"] == on[0]["restored"] for one in again["results"])


def test_memory_goes_on_and_what_other_worlds_left_there_goes(
    zygote: Zygote, tmp_path: Path, nodes: list[DaemonProcess]
) -> None:
    folders = [str(one.folder) for one in nodes]
    args: dict[str, Any] = {"kind": "ddp", "store": str(tmp_path / "store"), "every": 100, "daemons": folders}
    run(zygote, 2, tmp_path / "a", **args, steps=8, mark=True, kill={1: 5})

    def in_memory() -> set[str]:
        return {path.name for one in nodes for path in (one.folder / "test").glob("*.snap")}

    until(lambda: any(name.startswith("peer-") for name in in_memory()))  # the daemons go on without the workers
    left = in_memory()
    # Slow enough for daemons that are kept from their work for a while: what is not copied yet holds up what follows.
    on = run(zygote, 4, tmp_path / "b", **args, steps=12, pause=0.3, mark=True, kill={1: 11}, generation=1)
    assert all(code != 0 for code in on["exits"])
    now = in_memory()
    assert len(now) == 8  # each worker's own, and a copy
    assert not now & left
    last = run(zygote, 4, tmp_path / "c", **args, steps=12, generation=2)["results"]
    assert all(one["source"] == "memory" and one["first"] >= 10 for one in last)
    assert find(open_store(args["store"]))[1].step == 12


def test_a_worker_killed_during_its_snapshot_costs_that_snapshot_only(
    zygote: Zygote, tmp_path: Path, nodes: list[DaemonProcess]
) -> None:
    """What the others have of that step is all of the model, but not what the killed one had for itself."""
    args: dict[str, Any] = {"kind": "ddp", "every": 100, "snapshots": 2, "steps": 8}
    calm = run(zygote, 2, tmp_path / "calm", store=str(tmp_path / "calm-store"), **args)["results"]
    args |= {"store": str(tmp_path / "store"), "daemons": [str(nodes[0].folder)]}
    exits = run(zygote, 2, tmp_path / "a", **args, torn=6, kill={})["exits"]
    assert exits[1] == -signal.SIGKILL
    assert exits[0] != 0
    on = run(zygote, 2, tmp_path / "b", **args, seed=7, generation=1)["results"]
    assert [(one["first"], one["source"]) for one in on] == [(4, "memory")] * 2
    for before, after in zip(calm, on, strict=True):
        assert after["seen"] == before["losses"][:4]
        assert after["losses"] == before["losses"][4:]
        assert after["whole"] == before["whole"]


@pytest.mark.parametrize("has_memory", [True, False], ids=["snapshots", "store only"])
def test_one_that_is_asked_to_end_costs_no_step(
    zygote: Zygote, tmp_path: Path, nodes: list[DaemonProcess], has_memory: bool
) -> None:
    folders = [str(one.folder) for one in nodes] if has_memory else []
    args: dict[str, Any] = {"kind": "ddp", "store": str(tmp_path / "store"), "every": 100, "daemons": folders}
    reported = {"mark": True, "kill": {1: 5}, "number": signal.SIGTERM, "pause": 0.02}
    assert run(zygote, 2, tmp_path / "a", **args, **reported, steps=5000)["exits"] == [143, 143]
    done = max(int(path.name.rpartition("-")[2]) for path in (tmp_path / "a").glob("mark-1-*")) + 1
    assert 6 <= done < 5000
    assert find(open_store(args["store"]))[1].step == done
    on = run(zygote, 2, tmp_path / "b", **args, steps=done + 1, generation=1)["results"]
    assert {(one["first"], one["source"]) for one in on} == {(done, "memory" if has_memory else "store")}


def test_a_store_that_is_down_at_the_restart_catches_up(
    zygote: Zygote, tmp_path: Path, nodes: list[DaemonProcess]
) -> None:
    mount, away = tmp_path / "mount", tmp_path / "away"
    args: dict[str, Any] = {"kind": "ddp", "store": str(mount / "store"), "daemons": [str(nodes[0].folder)]}
    mount.mkdir()
    run(zygote, 2, tmp_path / "a", **args, every=4, steps=9, mark=True, kill={0: 7})
    mount.rename(away)
    mount.touch()  # a file where the folder was: nothing can be read or written there
    mend = ["9", str(away), str(mount)]
    # A store that is down is asked again after one second, two, four: it may take as long as it was down, and longer.
    on = run(zygote, 2, tmp_path / "b", **args, every=1, steps=30, pause=0.3, mend=mend, generation=1)["results"]
    assert all(one["source"] == "memory" and one["first"] >= 6 for one in on)
    found = find(open_store(args["store"]))[1]
    assert (found.step, found.generation) == (30, 1)
    # What each worker has otherwise is in what the daemons wrote.
    assert [len(of_worker(found.values, rank)["progress"]["seen"]) for rank in (0, 1)] == [30, 30]
    assert "progress" in differing(found.values)
    # Not only at the end: it was claimed, and stage 2 caught up, in the midst of training.
    steps = {int(path.name[5:13]) for path in (mount / "store").glob("step-*")}
    assert len({step for step in steps if step > 9}) > 1


def test_a_store_that_is_down_with_nothing_in_memory_is_the_end(
    zygote: Zygote, tmp_path: Path, nodes: list[DaemonProcess]
) -> None:
    (tmp_path / "mount").touch()
    args = {"kind": "ddp", "store": str(tmp_path / "mount/store"), "steps": 1, "daemons": [str(nodes[0].folder)]}
    done = zygote.run(SCRIPT, 1, tmp_path / "a", args=args)
    assert done["exits"] == [1]


@pytest.mark.parametrize("has_memory", [True, False], ids=["snapshots", "store only"])
def test_a_last_state_that_is_not_stored_is_reported_and_stays_in_memory(
    zygote: Zygote, tmp_path: Path, nodes: list[DaemonProcess], has_memory: bool
) -> None:
    mount, away = tmp_path / "mount", tmp_path / "mount-away"
    mount.mkdir()
    folders = [str(one.folder) for one in nodes] if has_memory else []
    args: dict[str, Any] = {"kind": "ddp", "store": str(mount / "store"), "every": 4, "steps": 6, "daemons": folders}
    first = run(zygote, 2, tmp_path / "a", **args, lose=str(mount))["results"]
    assert [one["stored"] for one in first] == [False, False]
    mount.unlink()
    away.rename(mount)
    again = run(zygote, 2, tmp_path / "b", **args, generation=1)["results"]
    assert [one["stored"] for one in again] == [True, True]
    assert [one["first"] for one in again] == ([6, 6] if has_memory else [4, 4])
    assert find(open_store(args["store"]))[1].step == 6
    assert again[0]["whole"] == first[0]["whole"]


def test_large_models_fit_beside_a_snapshot(tmp_path: Path) -> None:
    model = nn.ModuleList(nn.Linear(1, 1) for _ in range(150))
    optimizer = torch.optim.AdamW(model.parameters())
    checkpointer = Checkpointer(str(tmp_path), {"model": model, "optimizer": optimizer}, every=1)
    checkpointer.step(1)
    manifest = find(open_store(str(tmp_path)))[1]
    assert len(manifest.tensors) > 300 * 4
    assert len(json.dumps(manifest.values)) < 4096


class Odd:
    def state_dict(self) -> dict[str, Any]:
        return {"callback": len}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_what_cannot_be_kept_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    others = torch.optim.SGD(nn.Linear(2, 2).parameters())
    for state, says in (
        ({"odd": Odd()}, "odd.callback is a builtins.builtin_function_or_method: state is made of"),
        ({"number": 3}, "number is a int: it needs state_dict"),
        ({"model": model, "optimizer": others}, "optimizer has parameters of no module in the state"),
    ):
        with pytest.raises(UsageError, match=says) as reported:
            Checkpointer(str(tmp_path / "store"), state)
        assert "\n" not in str(reported.value)
    with pytest.raises(UsageError, match="unexpected keyword argument 'evry'"):
        Checkpointer(str(tmp_path / "store"), {"model": model}, evry=3)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="call init_process_group before"):
        Checkpointer(str(tmp_path / "store"), {"model": model})
    assert not (tmp_path / "store").exists()


def test_state_that_changes_its_shape_is_refused(tmp_path: Path) -> None:
    held = {"value": torch.zeros(3)}

    class Growing:
        def state_dict(self) -> dict[str, Any]:
            return held

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    checkpointer = Checkpointer(str(tmp_path), {"growing": Growing()}, every=1)
    checkpointer.step(1)
    held["value"] = torch.zeros(4)
    with pytest.raises(UsageError, match=r"growing\.value is not what it was"):
        checkpointer.step(2)


def test_looking_at_checkpoints_needs_no_torch() -> None:
    code = "import sys, holdfast.checkpoint, holdfast.checkpoint.restore.inspect; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
