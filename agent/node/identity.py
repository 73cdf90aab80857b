"""The node's identity: read once at the agent's start and sent with every new stream."""

import contextlib
import importlib.metadata
import os
import platform
import socket
from collections.abc import Mapping

import psutil

from holdfast import __version__
from holdfast.agent.collectors.files import read_text
from holdfast.agent.collectors.nic import nics
from holdfast.wire.types import Gpu, Identity, Pod


def read_identity(
    node_name: str,
    switch: str,
    slots: int,
    sysfs_root: str,
    incarnation: str,
    *,
    gpus: tuple[Gpu, ...] = (),
    driver: str = "",
    environment: Mapping[str, str] = os.environ,
    podinfo_root: str = "/etc/podinfo",
    proc_root: str = "/proc",
    predecessors: tuple[str, ...] = (),
) -> Identity:
    """Everything that can be known of this node; what cannot is left empty. Never raises.

    `node_name` empty: the hostname. `slots` 0: one per GPU. `gpus`, `driver`: from the GPU collector.
    """
    hostname = socket.gethostname()
    return Identity(
        node=node_name or hostname,
        hostname=hostname,
        incarnation=incarnation,
        ips=addresses(),
        pod=read_pod(environment, podinfo_root),
        gpus=gpus,
        nics=nics(sysfs_root),
        switch=switch,
        slots=slots or len(gpus),
        versions=versions(driver, proc_root),
        boot_id=read_text(f"{proc_root}/sys/kernel/random/boot_id"),
        cpus=_cpus(),
        memory_bytes=psutil.virtual_memory().total,
        predecessors=predecessors,
    )


def addresses() -> tuple[str, ...]:
    """The node's IPs as others may reach it: no loopback, no link-local, IPv4 first; loopback if all else fails."""
    found: list[str] = []
    try:
        for _, entries in sorted(psutil.net_if_addrs().items()):
            found += [e.address for e in entries if e.family in (socket.AF_INET, socket.AF_INET6)]
    except OSError:
        return ()
    outside = [a for a in found if not a.startswith(("127.", "169.254.", "fe80:")) and a != "::1"]
    return tuple(sorted(dict.fromkeys(outside or found), key=lambda address: ":" in address))


def read_pod(environment: Mapping[str, str], podinfo_root: str) -> Pod:
    """The pod by Kubernetes' downward API: POD_NAME, POD_NAMESPACE, POD_UID, or files `name` (also `podname`,
    `pod_name`), ... in `podinfo_root`."""

    def value(field: str) -> str:
        if found := environment.get(f"POD_{field.upper()}", ""):
            return found
        names = (field, f"pod{field}", f"pod_{field}")
        return next((text for n in names if (text := read_text(f"{podinfo_root}/{n}"))), "")

    return Pod(name=value("name"), namespace=value("namespace"), uid=value("uid"))


def versions(driver: str = "", proc_root: str = "/proc") -> dict[str, str]:
    """Versions of what a difference between nodes could come from; unknown ones are left out."""
    found = {"holdfast": __version__, "python": platform.python_version(), "kernel": platform.release()}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["torch"] = importlib.metadata.version("torch")  # from its metadata: torch itself is not imported
    if driver := driver or _driver(proc_root):
        found["driver"] = driver
    return found


def _driver(proc_root: str) -> str:
    """NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 ..."""
    words = read_text(f"{proc_root}/driver/nvidia/version").split("\n", 1)[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), "")


def _cpus() -> int:
    """Processors that this process may use, not those that the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 0
