"""No panel draws more than can be read: each is asked of a real Prometheus that scrapes more ranks and nodes than that.

A panel that draws all of a kind would have as many series as there are; how many there are beyond the limit makes no
difference, so 512 ranks on 64 nodes do for 12,288.
"""

import http.server
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
import yaml

from holdfast.agent.collectors.gpu import GpuCollector
from holdfast.agent.collectors.host import HostCollector
from holdfast.cli.local.ports import free_port
from holdfast.controller.http.metrics import CONTENT_TYPE, Metrics
from holdfast.controller.http.metrics_text import HELP
from holdfast.dashboards.boards import BOARDS
from holdfast.dashboards.spec import MOST_SERIES
from tests.agent.support.fake_nvml import Board, FakeNvml
from tests.controller.support.fake_facade import FakeFacade

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.calm,
    pytest.mark.timeout(300),
    pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed (Debian: prometheus)"),
]
FILLED = {"$job": "llm-175b", "$node": "node0", "$__rate_interval": "30s", "$__range": "60s"}


class Large(FakeFacade):
    """Every node, GPU and rank has every figure that a panel may ask for."""

    def job_metrics(self) -> list[dict[str, object]]:
        ranks = range(self.world)
        blame = {"self_ratio": dict.fromkeys(ranks, 1.0), "induced_s": dict.fromkeys(ranks, 2.5)}
        return [job | {"blame": blame | {"victim_s": dict.fromkeys(ranks, 1.0)}} for job in super().job_metrics()]

    def metrics(self) -> dict[str, object]:
        names = [row["name"] for row in self.node_rows]
        verdict = {"metric": "flops", "grade": "degraded", "value": 1.0}
        kinds = dict.fromkeys(super().metrics()["findings_total"], 5)
        verdicts = [verdict | {"node": name, "test": test} for name in names for test in ("gemm", "memory", "disk")]
        return super().metrics() | {"diagnostics": verdicts, "findings_total": kinds, "certificates": {}}


def large() -> FakeFacade:
    facade = FakeFacade(pp=8, dp=8, tp=8, per_node=8)
    assert min(facade.world, len(facade.node_rows)) > MOST_SERIES
    facade.__class__ = Large
    facade.warm_up(20)
    gpu = GpuCollector(FakeNvml([Board("GPU-a", links=18, ecc=5)]), slow_every=1).collect()[0].values
    own = [name.removeprefix("host_").removesuffix("_total") for name in HELP if name.startswith("host_")]
    host = HostCollector().collect() | dict.fromkeys(own, 1.0)
    for row in facade.node_rows:
        row["host"] = host
        for one in row["gpus"]:
            one["values"] = gpu
    return facade


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of it: one for all questions, as each client reads the host's certificates."""
    folder = tmp_path_factory.mktemp("prometheus")
    body = Metrics().scrape(large())()  # once: on a busy machine each may take longer than Prometheus waits

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = free_port()
    scrape = {"job_name": "holdfast", "honor_labels": True}
    scrape |= {"static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"]}]}
    every = {"scrape_interval": "3s", "scrape_timeout": "3s"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"global": every, "scrape_configs": [scrape]}))
    assert PROMETHEUS is not None
    command = [PROMETHEUS, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    with open(folder / "log", "wb") as log:
        running = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
    try:
        deadline = time.monotonic() + 150
        while not series(client, "count_over_time(holdfast_job_step[1m]) >= 3"):
            assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
            assert running.poll() is None
            time.sleep(0.5)
        yield client
    finally:
        client.close()
        running.terminate()
        running.wait(60)
        server.shutdown()
        server.server_close()


def series(client: httpx.Client, expr: str) -> int:
    """How many series a panel gets that shows the last half minute."""
    now = time.time()
    asked: dict[str, str | float] = {"query": expr, "start": now - 30, "end": now, "step": 5}
    with suppress(httpx.TransportError):
        reply = client.get("/api/v1/query_range", params=asked)
        if reply.status_code == httpx.codes.SERVICE_UNAVAILABLE:  # it still reads its own log
            return 0
        answer = reply.json()
        assert answer["status"] == "success", f"{expr}: {answer}"
        return len(answer["data"]["result"])
    return 0


def test_no_panel_has_more_series_than_can_be_read(prometheus: httpx.Client) -> None:
    assert series(prometheus, "holdfast_rank_step") == 512
    many, asked = dict[str, int](), 0
    for board in BOARDS:
        for panel in board.panels:
            exprs = [query.expr for query in panel.queries]
            for name, value in FILLED.items():
                exprs = [expr.replace(name, value) for expr in exprs]
            found = sum(series(prometheus, expr) for expr in exprs)
            asked += found > 0
            if found > MOST_SERIES:
                many[f"{board.uid}: {panel.title}"] = found
    assert many == {}
    assert asked >= 80  # a panel without data proves nothing
