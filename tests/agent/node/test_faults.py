"""Fault injection on a node: refused where it could do harm, and found by the detectors where it is applied."""

import asyncio
import os
from pathlib import Path

import pytest

from holdfast.agent.collectors.kernel_log import KernelLog
from holdfast.agent.logs import rules as log_rules
from holdfast.agent.node import faults as node_faults
from holdfast.agent.node.faults import FILL, NodeFaults
from holdfast.base.errors import UsageError
from holdfast.controller.state.events import FaultRequested
from holdfast.facts import xid
from holdfast.wire.types import Gpu
from tests.agent.support.sysfs import Sysfs
from tests.agent.test_app import config, running
from tests.controller.support.stage import eventually, stage

RULES = log_rules.load()


def build(folder: Path, sysfs: Path, gpus: tuple[Gpu, ...] = ()) -> tuple[NodeFaults, list[str]]:
    said: list[str] = []
    return NodeFaults(said.append, RULES, sysfs, folder, gpus), said


def test_an_xid_is_said_of_a_gpu_of_this_node(tmp_path: Path) -> None:
    faults, said = build(tmp_path, tmp_path, (Gpu(0, "GPU-0", "H200", "00000000:9B:00.0"),))
    assert faults.inject("xid=31")
    found = xid.parse(said[0])
    assert found is not None
    assert (found.code, found.device) == (31, "00000000:9B:00.0")


def test_every_rule_of_the_host_can_be_said(tmp_path: Path) -> None:
    faults, said = build(tmp_path, tmp_path)
    for rule in RULES.all:
        if rule.host:
            assert faults.inject(f"log={rule.name}")
            found = RULES.match(said[-1], host=True)
            assert found is not None
            assert found.name == rule.name


def test_what_is_said_comes_with_the_next_poll_whatever_the_kernel_log_is(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "absent"))
    log.say("NVRM: something")
    assert [line.text for line in log.poll()] == ["NVRM: something"]
    assert not log.poll()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("log=no-such", "no log rule of the host is called 'no-such'"),
        ("counter=no_such", "no such counter"),
        ("disk-full", "only one up to 1 GiB is filled"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, kind: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Sysfs(tmp_path)
    tree.rdma("mlx5_0")
    monkeypatch.setattr(node_faults, "_SMALL", 1)
    with pytest.raises(UsageError, match=message):
        build(tmp_path, Path(tree.path))[0].inject(kind)


def test_the_machines_own_counters_are_not_touched(tmp_path: Path) -> None:
    for kind in ("counter=symbol_error", "link-down"):
        with pytest.raises(UsageError, match="give the agent a --sysfs-root"):
            build(tmp_path, Path("/sys"))[0].inject(kind)
    with pytest.raises(UsageError, match="no RDMA port"):
        build(tmp_path, tmp_path)[0].inject("link-down")
    assert not build(tmp_path, tmp_path)[0].inject("kill")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_small_disk_is_filled(tmp_path: Path) -> None:
    assert os.system(f"mount -t tmpfs -o size=8m tmpfs {tmp_path} 2>/dev/null") == 0
    try:
        assert build(tmp_path, tmp_path)[0].inject("disk-full")
        status = os.statvfs(tmp_path)
        assert status.f_bavail < 0.01 * status.f_blocks
        (tmp_path / FILL).unlink()
    finally:
        os.system(f"umount {tmp_path}")


@pytest.mark.slow
def test_injected_troubles_are_found_by_a_real_controller(tmp_path: Path) -> None:
    """A real agent with a sysfs of its own: what is injected there arrives as the finding that it is."""
    tree = Sysfs(tmp_path)
    tree.rdma("mlx5_0")

    async def story() -> None:
        async with stage(tmp_path) as here:
            settings = config(tmp_path, here.port, sysfs_root=Path(tree.path), nics=("auto",))

            def kinds() -> list[tuple[str, str]]:
                return [(i.cause.kind.value, i.cause.subject) for i in here.brain.c.book.incidents.values()]

            async with running(settings):
                wanted = {"rdma/mlx5_0/1/symbol_error", "clock_offset_seconds"}
                await eventually(lambda: (node := here.brain.c.nodes.get("node0")) and wanted <= node.host.keys())
                here.shell.handle(FaultRequested("xid=79:node0"))
                here.shell.handle(FaultRequested("counter=symbol_error:node0"))
                await eventually(lambda: len(kinds()) >= 2, kinds)
                assert sorted(kinds()) == [
                    ("gpu-xid", "node0/0000:3b:00"),
                    ("network-errors", "node0/mlx5_0"),
                ]
                assert here.brain.c.nodes["node0"].state == "faulty"

    asyncio.run(story())
