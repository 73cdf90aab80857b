"""From every NIC to every memory node of this host and back; and from each NIC to the next one.

RDMA: perftest through the adapter's own loop, server and client pinned to one memory node after the other. Elsewhere
TCP to the NIC's own address: the kernel turns that round before the wire, so it tests the host's stack and memory
path and nothing beyond.
"""

import math
import os
import shutil
import socket
import subprocess
import threading
from typing import Any, TypeVar

from holdfast.diagnostics.catalog.options import CheckOptions
from holdfast.diagnostics.catalog.results import CheckFault, CheckResult, Reading
from holdfast.diagnostics.measure import hardware, perftest
from holdfast.diagnostics.measure.mover import MoverClient, MoverServer

T = TypeVar("T")

_SECONDS = {False: 0.4, True: 1.5}
_TIMEOUT_S = 10.0
_MOST_NICS = {False: 4, True: 64}


def run(options: CheckOptions) -> CheckResult:
    ports = hardware.rdma_ports(options.root)
    evidence: dict[str, Any] = {}
    readings: list[Reading] = []
    faults: list[CheckFault] = []
    if ports and shutil.which(perftest.PROGRAM):
        nodes = hardware.memory_nodes(options.root)
        for port in ports:
            for node, cpus in nodes.items():
                component = f"{port.device}/numa{node}" if len(nodes) > 1 else port.device
                _rdma(port, port, component, cpus, options, readings, faults)
        for port, following in _ring(ports):
            component = f"{port.device}-{following.device}"
            _rdma(port, following, component, os.sched_getaffinity(0), options, readings, faults)
        return CheckResult("loopback", tuple(readings), tuple(faults), evidence={"by": perftest.PROGRAM})
    if ports:
        evidence["rdma"] = f"not measured: no {perftest.PROGRAM} here (package perftest)"
    nics = hardware.nic_addresses()[: _MOST_NICS[options.is_full]]
    if not nics:
        return CheckResult("loopback", unable="no NIC with an address", evidence=evidence)
    before = os.sched_getaffinity(0)
    nodes = hardware.memory_nodes(options.root)
    try:
        for name, address in nics:
            for node, cpus in nodes.items():
                os.sched_setaffinity(0, cpus)
                component = f"{name}/numa{node}" if len(nodes) > 1 else name
                readings.append(Reading("bandwidth", _tcp(address, _SECONDS[options.is_full]), component))
    finally:
        os.sched_setaffinity(0, before)
    for (name, source), (next_name, address) in _ring(nics):
        rate = _tcp(address, _SECONDS[options.is_full], source)
        readings.append(Reading("bandwidth", rate, f"{name}-{next_name}"))
    return CheckResult("loopback", tuple(readings), evidence={**evidence, "by": "tcp"})


def _ring(nics: list[T]) -> list[tuple[T, T]]:
    """Each with the next one, the last with the first; nothing where there is only one."""
    return list(zip(nics, [*nics[1:], *nics[:1]], strict=True)) if len(nics) > 1 else []


def _tcp(address: str, seconds: float, source: str = "") -> float:
    server = MoverServer(address, 0, "loopback", _TIMEOUT_S)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    client = MoverClient(address, server.port, "loopback", _TIMEOUT_S, source)
    try:
        return client.there(seconds)
    finally:
        client.bye()
        thread.join()


def _rdma(
    port: hardware.RdmaPort,
    to: hardware.RdmaPort,
    component: str,
    cpus: set[int],
    options: CheckOptions,
    readings: list[Reading],
    faults: list[CheckFault],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        number = int(probe.getsockname()[1])
    pin = ["taskset", "-c", ",".join(map(str, sorted(cpus)))] if shutil.which("taskset") else []
    server = [*pin, *perftest.command(to.device, number, gid=to.gid, is_full=options.is_full)]
    client = [*pin, *perftest.command(port.device, number, "127.0.0.1", port.gid, options.is_full)]
    rate, words = _perftest(server, client)
    if math.isnan(rate):
        faults.append(CheckFault(f"no bandwidth through it: {words}", component))
    else:
        readings.append(Reading("bandwidth", rate, component, perftest.SHARE_OF_RATE * min(port.rate, to.rate)))


def _perftest(server: list[str], client: list[str]) -> tuple[float, str]:
    """Bytes per second, NaN when it failed, and then its last output."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(server, stdin=quiet, stdout=quiet, stderr=quiet) as running:
        try:
            words = ""
            for _ in range(5):
                done = subprocess.run(client, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
                rate = perftest.parse(done.stdout)
                if not math.isnan(rate):
                    return rate, ""
                words = (done.stderr or done.stdout).strip().rpartition("\n")[2][:200]
            return math.nan, words
        except subprocess.TimeoutExpired:
            return math.nan, f"no result in {_TIMEOUT_S:g} s"
        finally:
            running.kill()
