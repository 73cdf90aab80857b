"""Three real DDP ranks: the rank whose gradient was the first that is not finite is known, or none is named."""

import json
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.hooks.gradients import SUFFIX, bad_since, spread
from holdfast.agent.logs.progress_watch import ProgressWatch
from holdfast.controller.detectors.workers.origins import GradientOrigins
from holdfast.wire import types as t

WORLD, STRUCK, STEPS = 3, 11, 22
SCRIPT = """
    import copy, hashlib, math, os, sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank, folder = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + folder + "/meet", rank=rank, world_size=3)

    def train(case, watched):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Tanh(), torch.nn.Linear(16, 300),
            torch.nn.Linear(300, 300), torch.nn.Linear(300, 3),
        )
        if watched:
            os.environ["HOLDFAST_PROBE"] = f"{folder}/{case}-{rank}"
            from holdfast.agent.hooks.finite import Finite
            watch = Finite(torch, clock=lambda: 0.0, cpu=lambda: 0.0)  # every step is sampled
        ddp = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        handle = optimizer.register_step_post_hook(lambda one, args, kwargs: watch.after(one)) if watched else None
        now = [0]
        strikes = lambda: now[0] == STRUCK and rank == 2
        def spoil(gradient):
            return gradient * math.inf if strikes() else gradient
        if case == "hook on a bias":
            net[0].bias.register_hook(spoil)
        if case == "hook on a large weight":
            net[4].weight.register_hook(spoil)
        torch.manual_seed(rank)
        for n in range(STEPS):
            now[0] = n
            optimizer.zero_grad(set_to_none=n % 2 == 0 or case == "overflow")
            for part in range(2 if case == "accumulated" else 1):
                x, y = torch.randn(16, 8), torch.randint(3, (16,))
                if case in ("input", "accumulated") and strikes() and part == 0:
                    x[3, 2] = math.inf
                if case == "everybody" and n == STRUCK:
                    x[3, 2] = math.nan
                if case == "overflow" and n % 4 == 2:  # as of a GradScaler, on one rank: all skip the step
                    x[0, 0] = math.inf
                if case == "overflow" and n == STRUCK and rank == 2:
                    x[0, 0] = math.nan
                if case == "accumulated" and part == 0:
                    with ddp.no_sync():
                        torch.nn.functional.cross_entropy(ddp(x), y).backward()
                    continue
                loss = torch.nn.functional.cross_entropy(ddp(x), y)
                if case == "loss" and strikes():
                    loss = loss * math.nan
                loss.backward()
            if case == "overflow" and n % 4 == 2 and n < STRUCK:
                continue
            optimizer.step()
        state = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
        return hashlib.sha256(state).hexdigest() + str(torch.get_rng_state().sum().item())

    for case in CASES:
        assert train(case, False) == train(case, True), "a watched run differs"
    dist.barrier()
    os._exit(0)
"""
CASES = {
    "input": {2}, "accumulated": {2}, "loss": {2}, "hook on a bias": {2, None}, "hook on a large weight": {2, None},
    "everybody": {None}, "overflow": {2}, "healthy": {None},
}  # fmt: skip
"""Who may be named. A bias may be watched or not."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("ranks")
    code = textwrap.dedent(SCRIPT)
    for name, value in (("CASES", list(CASES)), ("STRUCK", STRUCK), ("STEPS", STEPS)):
        code = code.replace(name, repr(value))
    (folder / "train.py").write_text(code)
    argv = [sys.executable, str(folder / "train.py")]
    ranks = [
        subprocess.Popen([*argv, str(rank), str(folder)], stderr=subprocess.PIPE, text=True) for rank in range(WORLD)
    ]
    errors = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * WORLD, errors
    return folder


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize("case", CASES)
def test_the_rank_whose_gradient_it_was_is_named_or_none(folder: Path, case: str) -> None:
    seen: list[t.Event] = []
    origins = GradientOrigins()
    for rank in range(WORLD):
        ProgressWatch(seen.append).look(("j", 1, rank), folder / f"{case}-{rank}", None)
    for event in seen:
        assert isinstance(event, t.ProgressSeen)
        assert event.source == t.GRADIENTS
        origins.saw(event, f"node{event.rank}")
    assert len(seen) == (0 if case == "healthy" else WORLD)
    first = origins.first(1, WORLD)
    assert (first[0] if first else None) in CASES[case]
    if first is not None:
        skipped = 3 if case == "overflow" else 0
        assert first == (2, STRUCK - skipped, "node2")


@given(st.integers(1, 8), st.lists(st.booleans(), min_size=1, max_size=40))
def test_the_streak_that_the_ring_holds(size: int, steps: list[bool]) -> None:
    ring = [True] * size
    for n, good in enumerate(steps):
        ring[n % size] = good
    bad = next((i for i, good in enumerate(reversed(steps)) if good), len(steps))  # in a row, to the newest
    is_held = bad < size - 1 or (bad == len(steps) < size)  # the row of the next step has taken the oldest's place
    expected = len(steps) - bad if bad and is_held else -1
    assert bad_since(ring, len(steps)) == expected


@given(st.integers(0, 200))
def test_a_beginning_is_spread(count: int) -> None:
    found = spread(list(range(count)))
    assert sorted(found) == list(range(count))
    if count > 4:
        assert found[:3] == [0, count - 1, (count - 1) // 2]


@pytest.mark.parametrize("said", ["", "{", "[]", '{"since": "x", "steps": 1}', '{"since": 1}', '{"since": 1e999}'])
def test_nonsense_beside_a_probe_is_not_reported(tmp_path: Path, said: str) -> None:
    reported: list[t.Event] = []
    beside = tmp_path / f"p{SUFFIX}"
    beside.write_text(said)
    watch = ProgressWatch(reported.append)
    watch.look(("j", 1, 0), tmp_path / "p", None)
    watch.end(("j", 1, 0), tmp_path / "p", None)
    assert reported == []
    assert not beside.exists()


def test_it_is_reported_once_for_each_change(tmp_path: Path) -> None:
    reported: list[t.Event] = []
    beside = tmp_path / f"p{SUFFIX}"
    watch = ProgressWatch(reported.append)
    for since in (-1, -1, 7):
        beside.write_text(json.dumps({"since": since, "steps": 9, "watched": 1}))
        os.utime(beside, ns=(since + 2, since + 2))
        watch.look(("j", 1, 0), tmp_path / "p", None)
    assert [(e.number, e.count) for e in reported if isinstance(e, t.ProgressSeen)] == [(-1, 9), (7, 9)]


def test_who_has_not_said_may_have_been_the_first() -> None:
    def said(*since: int) -> GradientOrigins:
        origins = GradientOrigins()
        for rank, number in enumerate(since):
            origins.saw(t.ProgressSeen("j", 1, rank, 0, t.GRADIENTS, number), f"n{rank}")
        return origins

    assert said(8, 7, 8).first(1, 3) == (1, 7, "n1")
    assert said(8, 7).first(1, 3) is None
    assert said(8, 7, 7).first(1, 3) is None
    assert said(-1, -1, -1).first(1, 3) is None
    assert said(-1, -1, 4).first(1, 3) == (2, 4, "n2")
    assert said(8, 7, 8).first(2, 3) is None
