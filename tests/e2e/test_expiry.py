"""Certificates that expire soon, in a real cluster: they are reported where findings are, and the advice helps."""

import datetime
import http.server
import json
import re
import shlex
import ssl
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509

from holdfast.base.certs import write_cluster
from tests.e2e.daemons import Commands, Running, ready, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.calm]
KIND = "certificate-expires"


def test_each_certificate_that_soon_ends_is_reported_with_what_renews_it(holdfast: Commands, tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    now = datetime.datetime.now(datetime.UTC)
    write_cluster(certs, ["head.example"], ["node0", "node1"], now - datetime.timedelta(days=3275))
    write_cluster(certs, ["head.example"], ["node0"], now - datetime.timedelta(days=820), renew=True)
    write_cluster(certs, [], ["node1"], now, renew=True)
    alerts = Alerts()
    its = certs / "controller"

    def start(state: str) -> tuple[Running, httpx.Client]:
        controller = holdfast.start(
            "controller", "--grpc-port", "0", "--http-port", "0", "--state-dir", str(tmp_path / state),
            "--tls-ca", str(its / "ca.pem"), "--tls-cert", str(its / "controller.pem"),
            "--tls-key", str(its / "controller-key.pem"), "--notify", f"webhook={alerts.url}",
        )  # fmt: skip
        rpc, web = ready(controller)
        for node in ("node0", "node1"):
            folder = certs / "nodes" / node
            holdfast.start(
                "agent", "--controller", rpc, "--node-name", node, "--no-warm", "--state-dir",
                str(tmp_path / f"{state}-{node}"), "--tls-ca", str(folder / "ca.pem"),
                "--tls-cert", str(folder / "node.pem"), "--tls-key", str(folder / "node-key.pem"),
            )  # fmt: skip
        trust = ssl.create_default_context(cafile=str(certs / "operator" / "ca.pem"))
        return controller, httpx.Client(base_url=f"https://{web}/api/v1", verify=trust, trust_env=False, timeout=30)

    def reported(api: httpx.Client) -> dict[str, dict[str, Any]]:
        return {one["culprit"]: one for one in api.get("/incidents").json() if one["kind"] == KIND}

    def joined(api: httpx.Client) -> list[str]:
        return [node["name"] for node in api.get("/nodes").json() if node["connected"]]

    with alerts:
        controller, api = start("first")
        with api:
            wait_for(lambda: len(reported(api)) == 3, 60, lambda: reported(api))
            incidents = reported(api)
            levels = {subject: one["severity"] for subject, one in incidents.items()}
            assert levels == {"authority": "warning", "controller": "critical", "node0": "critical"}
            assert KIND in api.get("/status").text
            wait_for(lambda: len([one for one in alerts.got if one["kind"] == KIND]) == 3, 60, lambda: alerts.got)
        for agent in holdfast.running[1:]:
            agent.process.terminate()
        controller.process.terminate()
        assert controller.wait(60) == 0
        for one in incidents.values():
            [command] = re.findall(r"`holdfast (certs [^`]*)`", one["summary"])
            renewed = holdfast.run(*shlex.split(command.replace("DIR", str(certs))))
            assert renewed.process.returncode == 0, renewed.err
        _, api = start("second")
        with api:
            wait_for(lambda: sorted(joined(api)) == ["node0", "node1"], 60, lambda: joined(api))
        files = (
            certs / "ca" / "ca.pem",
            its / "ca.pem",
            its / "controller.pem",
            certs / "nodes" / "node0" / "node.pem",
        )
        for path in files:
            ends = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
            assert ends > now + datetime.timedelta(days=800), path


class Alerts:
    """A receiver of webhooks."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        got = self.got

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(5)
