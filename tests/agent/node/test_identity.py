"""A node's identity from real sysfs trees."""

import socket
from pathlib import Path

from holdfast.agent.node.identity import addresses, read_identity, read_pod, versions
from holdfast.wire.types import Gpu, Pod
from tests.agent.support.sysfs import Sysfs, put


def test_identity_of_a_gpu_node(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path / "sys")
    sysfs.rdma("mlx5_0", numa=1)
    put(tmp_path / "proc/sys/kernel/random/boot_id", "6f1c2d3e-0000-4000-8000-000000000001")
    put(tmp_path / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar")
    gpu = Gpu(0, "GPU-1", "NVIDIA H100 80GB HBM3", "0000:9b:00.0", 80 << 30)
    identity = read_identity(
        "n7",
        "tor3",
        0,
        sysfs.path,
        "abc",
        gpus=(gpu,),
        environment={"POD_NAME": "agent-x", "POD_NAMESPACE": "train", "POD_UID": "u1"},
        proc_root=str(tmp_path / "proc"),
    )
    assert (identity.node, identity.switch, identity.incarnation, identity.slots) == ("n7", "tor3", "abc", 1)
    assert identity.hostname == socket.gethostname()
    assert identity.pod == Pod("agent-x", "train", "u1")
    assert identity.gpus == (gpu,)
    assert [(n.name, n.speed_bps, n.numa_node) for n in identity.nics] == [("mlx5_0", 400 * 10**9, 1)]
    assert identity.boot_id == "6f1c2d3e-0000-4000-8000-000000000001"
    assert identity.versions["driver"] == "550.54.15"
    assert {"python", "kernel"} <= identity.versions.keys()
    assert identity.cpus >= 1
    assert identity.memory_bytes > 2**20


def test_identity_of_a_bare_place(tmp_path: Path) -> None:
    identity = read_identity("", "", 2, str(tmp_path), "i", environment={}, proc_root=str(tmp_path))
    assert (identity.node, identity.slots, identity.nics, identity.boot_id) == (identity.hostname, 2, (), "")
    assert "driver" not in identity.versions


def test_pod_from_files_and_environment_first(tmp_path: Path) -> None:
    put(tmp_path / "name", "from-file")
    put(tmp_path / "podnamespace", "ns")
    put(tmp_path / "pod_uid", "u")
    assert read_pod({}, str(tmp_path)) == Pod("from-file", "ns", "u")
    assert read_pod({"POD_NAME": "from-env"}, str(tmp_path)).name == "from-env"
    assert read_pod({}, str(tmp_path / "none")) == Pod()


def test_addresses_are_usable() -> None:
    found = addresses()
    assert len(set(found)) == len(found)
    assert not any(a.startswith("127.") for a in found) or all(a.startswith(("127.", "::1")) for a in found)


def test_a_driver_given_wins(tmp_path: Path) -> None:
    assert versions("560.1", str(tmp_path))["driver"] == "560.1"
