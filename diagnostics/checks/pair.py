"""Between two nodes: the client measures both ways, the server answers.

Over TCP by our own mover; in addition over every pair of RDMA devices by perftest, one rail at a time, so that a bad
NIC is distinguished from a bad node.
"""

import errno
import shutil
import subprocess
from typing import Any

from holdfast.diagnostics.catalog.options import CheckOptions
from holdfast.diagnostics.catalog.results import CheckResult, Reading
from holdfast.diagnostics.measure import hardware, perftest
from holdfast.diagnostics.measure.mover import MoverClient, MoverServer

_SECONDS = {False: 0.6, True: 3.0}
_PACKETS = {False: 2000, True: 20_000}
_TIMEOUT_S = {False: 9.0, True: 19.0}
_RAIL_TIMEOUT_S = 5.0


def run(options: CheckOptions) -> CheckResult:
    if not options.port or options.role not in ("client", "server"):
        return CheckResult("pair", unable="needs a partner: the controller runs it on two nodes")
    return _serve(options) if options.role == "server" else _measure(options)


def _serve(options: CheckOptions) -> CheckResult:
    try:
        server = MoverServer(options.address, options.port, options.session, _TIMEOUT_S[options.is_full])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = f"port {options.port} is taken by another program"
            return CheckResult("pair", unable=why, evidence={"try_again": True})
        return CheckResult("pair", error=f"cannot listen on {options.address}: {error.strerror}")
    rails = _Rails(options)
    server.wishes = {"rail": rails.start}
    try:
        if not server.serve():
            return CheckResult("pair", error="its partner did not connect, or did not finish")
        return CheckResult("pair")
    finally:
        rails.close()


class _Rails:
    """The server's ends of perftest."""

    def __init__(self, options: CheckOptions) -> None:
        self._options = options
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, wish: dict[str, Any]) -> dict[str, Any]:
        index = int(wish["index"])
        ports = {p.device: p for p in hardware.rdma_ports(self._options.root)}
        device = self._options.rdma[index] if index < len(self._options.rdma) else ""
        if device not in ports or not shutil.which(perftest.PROGRAM):
            return {"unable": f"{device or 'no device'}: not active, or no {perftest.PROGRAM}"}
        port = self._options.port + 1 + index
        words = perftest.command(device, port, gid=ports[device].gid, is_full=self._options.is_full)
        quiet = subprocess.DEVNULL
        self._running.append(subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet))
        return {"port": port}

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


def _measure(options: CheckOptions) -> CheckResult:
    full = options.is_full
    client = MoverClient(options.address, options.port, options.session, _TIMEOUT_S[full])
    try:
        there, back = client.there(_SECONDS[full]), client.back(_SECONDS[full])
        echoes = client.echoes(_PACKETS[full], 2 * _SECONDS[full])
        evidence: dict[str, Any] = {"there": there, "back": back}
        readings = [Reading("bandwidth", min(there, back))]
        if echoes is not None:
            evidence |= {"packets": echoes.sent, "packets_lost": echoes.lost}
            readings += [
                Reading("loss", echoes.lost / echoes.sent),
                Reading("round_trip", echoes.round_trip),
                Reading("clock_offset", abs(echoes.offset)),
            ]
        readings += _rails(options, client, evidence)
        client.bye()
    except OSError as error:
        return CheckResult("pair", error=f"cannot reach {options.address}: {error.strerror or error or 'timed out'}")
    return CheckResult("pair", tuple(readings), evidence=evidence)


def _rails(options: CheckOptions, client: MoverClient, evidence: dict[str, Any]) -> list[Reading]:
    ports = {p.device: p for p in hardware.rdma_ports(options.root)}
    readings = []
    for index, device in enumerate(options.rdma):
        if device not in ports or not shutil.which(perftest.PROGRAM):
            evidence[device] = f"not measured: not active, or no {perftest.PROGRAM}"
            continue
        ready = client.wish("rail", index=index)
        if "port" not in ready:
            evidence[device] = ready.get("unable", "its partner did not answer")
            continue
        port = ports[device]
        words = perftest.command(device, int(ready["port"]), options.address, port.gid, options.is_full)
        rate = _run(words)
        readings.append(Reading("bandwidth", rate, device, perftest.SHARE_OF_RATE * port.rate))
    return readings


def _run(words: list[str]) -> float:
    """perftest's client, again while its server is not up yet. 0 when nothing comes through."""
    for _ in range(3):
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=_RAIL_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return 0.0
        rate = perftest.parse(done.stdout)
        if rate == rate:  # not NaN
            return rate
    return 0.0
