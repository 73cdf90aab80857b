"""Real Prometheus, Alertmanager and a webhook beside a cluster, and a node with fake GPUs."""

import http.server
import json
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import yaml

from holdfast.cli.local.ports import free_port
from holdfast.dashboards.export import Places, write
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.e2e.daemons import Json, plain_get, wait_for

PROMETHEUS, ALERTMANAGER = shutil.which("prometheus"), shutil.which("prometheus-alertmanager")


class Webhook:
    """Keeps the alerts that are sent to it."""

    def __init__(self) -> None:
        alerts = self.alerts = list[Json]()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                alerts.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> "Webhook":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def stack(folder: Path, controller: str, webhook: str) -> Iterator[str]:
    """The exported files, served: gives Prometheus' URL. Scraped every second, and grouped for one only."""
    prometheus_port, manager_port = free_port(), free_port()
    write(folder, Places(controller=controller, alertmanager=f"127.0.0.1:{manager_port}", webhook=webhook))
    _edit(folder / "prometheus" / "prometheus.yml", ("global",), scrape_interval="1s", evaluation_interval="1s")
    _edit(folder / "alertmanager" / "alertmanager.yml", ("route",), group_wait="1s")
    assert PROMETHEUS is not None
    assert ALERTMANAGER is not None
    commands = [
        [
            PROMETHEUS,
            f"--config.file={folder}/prometheus/prometheus.yml",
            f"--storage.tsdb.path={folder}/tsdb",
            f"--web.listen-address=127.0.0.1:{prometheus_port}",
        ],
        [
            ALERTMANAGER,
            f"--config.file={folder}/alertmanager/alertmanager.yml",
            f"--storage.path={folder}/manager",
            f"--web.listen-address=127.0.0.1:{manager_port}",
            "--cluster.listen-address=",
        ],
    ]
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            with open(folder / f"{number}.log", "wb") as log:
                servers.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=folder))
        url = f"http://127.0.0.1:{prometheus_port}"
        wait_for(lambda: is_ready(url) and is_ready(f"http://127.0.0.1:{manager_port}"), 60)
        yield url
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(20)


def ask(prometheus: str, expr: str) -> list[Json]:
    """An instant query. AssertionError with Prometheus' own words when it takes the query for wrong."""
    answer = plain_get(f"{prometheus}/api/v1/query", params={"query": expr}).json()
    assert answer["status"] == "success", f"{expr}: {answer}"
    found: list[Json] = answer["data"]["result"]
    return found


@contextmanager
def gpu_node(address: str) -> Iterator[None]:
    """An agent, as the controller sees it, of a node with two GPUs and no room for workers."""
    outgoing: queue.Queue[bytes | None] = queue.Queue()
    gpus = tuple(t.Gpu(g, f"GPU-{g}", "NVIDIA H200", f"0000:{g:02x}:00.0", 140 << 30) for g in range(2))
    nic = t.Nic("mlx5_0", "rdma", 400_000_000_000, 0, "ACTIVE")
    identity = t.Identity("gpus", "gpus", "one", gpus=gpus, nics=(nic,), slots=0, cpus=8, memory_bytes=1 << 40)
    outgoing.put(wire.encode_agent(msg.Hello(identity, wall_ns=time.time_ns())))
    over = threading.Event()
    values = {
        "utilization_ratio": 0.97,
        "memory_used_bytes": 61e9,
        "temperature_celsius": 63.0,
        "power_watts": 655.0,
        "sm_clock_hertz": 1.98e9,
        "hw_throttled": 0.0,
        "ecc_uncorrected_volatile": 0.0,
        "ecc_corrected_volatile": 3.0,
        "nvlinks_down": 0.0,
        **{f"nvlink_{name}_errors": 0.0 for name in ("crc_flit", "crc_data", "replay", "recovery")},
        "hw_thermal_throttle_seconds": 0.0,
        "sw_thermal_throttle_seconds": 0.5,
    }

    def beat() -> None:
        seq = 0
        while not over.wait(0.25):
            seq += 1
            gauges = tuple(t.GpuGauges(g.index, values) for g in gpus)
            frame = t.Frame(seq, time.time_ns(), time.monotonic_ns(), heartbeat_interval=0.25, gpus=gauges)
            outgoing.put(wire.encode_agent(frame))
        outgoing.put(None)

    channel = grpc.insecure_channel(address)
    call: Any = channel.stream_stream(
        "/holdfast.v1.Controller/Session", request_serializer=lambda b: b, response_deserializer=lambda b: b
    )(iter(outgoing.get, None))

    def listen() -> None:
        with suppress(grpc.RpcError):
            for _ in call:
                pass

    threads = [threading.Thread(target=run, daemon=True) for run in (beat, listen)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        call.cancel()
        for thread in threads:
            thread.join(5)
        channel.close()


def _edit(path: Path, keys: tuple[str, ...], **values: str) -> None:
    whole = yaml.safe_load(path.read_text())
    part = whole
    for key in keys:
        part = part[key]
    part.update(values)
    path.write_text(yaml.safe_dump(whole))


def is_ready(url: str) -> bool:
    with suppress(httpx.TransportError):
        return plain_get(f"{url}/-/ready").status_code == 200
    return False
