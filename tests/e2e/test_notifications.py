"""A real Alertmanager, fed by the controller's receivers, and servers that play the other services."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from holdfast.base.errors import Unavailable
from holdfast.cli.local.cluster import LocalCluster
from holdfast.cli.local.ports import free_port
from tests.controller.alerts.test_send import Web, serving
from tests.e2e import monitoring
from tests.e2e.daemons import SMALL_MODEL, Commands, Json, plain_get, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.calm,
    pytest.mark.timeout(300),
    pytest.mark.skipif(monitoring.ALERTMANAGER is None, reason="Debian: prometheus-alertmanager"),
]

RESOLVE_S = 10
"""`resolve_timeout` of the Alertmanager: an alert that is not sent again is over after it. Every two seconds it
is sent, which on a busy machine are several."""


@contextmanager
def alertmanager(folder: Path, webhook: str) -> Iterator[str]:
    folder.mkdir()
    config = folder / "alertmanager.yml"
    route = {"receiver": "hook", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"}
    hook = {"name": "hook", "webhook_configs": [{"url": webhook, "send_resolved": True}]}
    config.write_text(
        yaml.safe_dump({"global": {"resolve_timeout": f"{RESOLVE_S}s"}, "route": route, "receivers": [hook]})
    )
    port = free_port()
    assert monitoring.ALERTMANAGER is not None
    command = [
        monitoring.ALERTMANAGER, f"--config.file={config}", f"--storage.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        wait_for(lambda: monitoring.is_ready(url), 60)
        yield url
    finally:
        server.terminate()
        server.wait(20)


def active(url: str) -> list[Json]:
    """Incidents that are firing there, without the test message."""
    found: list[Json] = plain_get(f"{url}/api/v2/alerts", params={"active": "true"}).json()
    return [one for one in found if one["labels"]["kind"] != "test"]


def is_resolved(hook: monitoring.Webhook, alert: Json) -> bool:
    return any(one["status"] == "resolved" and one["labels"] == alert["labels"] for one in hook.alerts)


def is_up(cluster: LocalCluster) -> bool:
    with suppress(Unavailable):
        return bool(cluster.client.jobs())
    return False


def test_alerts_fire_as_long_as_they_are_true(holdfast: Commands, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise ValueError('the learning rate is a list')\n")
    web = Web()
    web.answer = b'{"ok": true}'
    (tmp_path / "key").write_text("s3cret\n")
    with (
        serving(web.server),
        monitoring.Webhook() as hook,
        alertmanager(tmp_path / "manager", hook.url) as manager,
    ):
        receivers = [
            f"alertmanager={manager}", f"pagerduty={web.url}/pd?key=@{tmp_path / 'key'}", f"slack={web.url}/slack",
            f"opsgenie={web.url}/og?key=@{tmp_path / 'key'}", f"telegram={web.url}?token=@{tmp_path / 'key'}&chat=7",
        ]  # fmt: skip
        flags = ["--notify", ",".join(receivers), "--notify-resend", "2", "--restart-attempts", "2"]
        with LocalCluster(tmp_path / "cluster", nodes=1, slots=1, controller_flags=flags) as cluster:
            tested = holdfast.run("notify", "test", "--controller", cluster.http)
            assert tested.process.returncode == 0, tested.err
            assert tested.out.count(": sent: HTTP 200") == 5
            web.posted.clear()

            run = holdfast.start("run", "--controller", cluster.http, "--name", "broken", str(script))
            wait_for(lambda: run.process.poll() is not None, 90, lambda: run.err[-2000:])
            client = cluster.client
            job = client.job()
            assert job is not None
            assert job["state"] == "failed"
            wait_for(lambda: active(manager), 60)
            (firing,) = active(manager)
            assert firing["labels"]["job"] == "broken"
            assert firing["labels"]["severity"] == "page"
            assert job["health"]["sentence"] in firing["annotations"]["description"]
            assert firing["generatorURL"].startswith(f"http://{cluster.http}/#/incidents/")
            runbook = firing["annotations"]["runbook_url"]
            page = plain_get(runbook)
            assert page.status_code == 200
            assert f'id="{runbook.partition("#")[2]}"' in page.text

            end = time.monotonic() + 1.5 * RESOLVE_S
            while time.monotonic() < end:  # at every instant of more than a timeout, not only at the last
                (still,) = active(manager)
                assert still["fingerprint"] == firing["fingerprint"]
                time.sleep(0.2)
            assert not is_resolved(hook, firing)

            before = len(web.posted)
            cluster.kill_controller()
            wait_for(lambda: is_up(cluster), 60)
            wait_for(lambda: active(manager), 60)  # where it took the new one longer than that to begin
            updated = max(one["updatedAt"] for one in active(manager))
            wait_for(lambda: any(one["updatedAt"] > updated for one in active(manager)), 60)
            (still,) = active(manager)
            assert still["fingerprint"] == firing["fingerprint"]
            assert len(web.posted) == before
            assert holdfast.run("ack", "broken", "--controller", cluster.http).process.returncode == 0
            wait_for(lambda: not active(manager), 60)
            wait_for(lambda: len(web.posted) == before + 4, 60, lambda: web.posted[before:])
            wait_for(lambda: is_resolved(hook, firing), 60, lambda: hook.alerts)
            assert holdfast.run("ack", "broken", "--controller", cluster.http).process.returncode == 1

    opened = [body for path, body in web.posted if path == "/pd"]
    assert [one["event_action"] for one in opened] == ["trigger", "resolve"]
    assert len({one["dedup_key"] for one in opened}) == 1
    assert [path.partition("?")[0] for path, _ in web.posted if path.startswith("/og")][-1].endswith("/close")
    texts = [body["text"] for path, body in web.posted if path == "/slack"]
    assert [("failed" in one, "acknowledged" in one) for one in texts] == [(True, False), (True, True)]


def test_an_incident_that_lasts_is_firing_and_then_resolved(holdfast: Commands, tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'store'}"
    with monitoring.Webhook() as hook, alertmanager(tmp_path / "manager", hook.url) as manager:
        flags = ["--notify", f"alertmanager={manager}", "--notify-resend", "2"]
        with LocalCluster(tmp_path / "cluster", nodes=2, slots=1, mortal=["node1"], controller_flags=flags) as cluster:
            argv = ("--nnodes", "2", "--nproc-per-node", "1", "--name", "lasting", "-m", "holdfast.trainer")
            mesh = ("--dp", "2", "--steps", "1000000", "--store", store, "--checkpoint-every", "5", *SMALL_MODEL)
            run = holdfast.start("run", "--controller", cluster.http, *argv, *mesh)
            client = cluster.client
            wait_for(lambda: ((client.job() or {}).get("step") or -1) >= 5, 120, lambda: run.err[-2000:])
            client.evict("node1")  # there is no other: the job waits, and its incident is open
            wait_for(lambda: active(manager), 60, client.incidents)
            (firing,) = active(manager)
            end = time.monotonic() + 1.5 * RESOLVE_S
            while time.monotonic() < end:
                (still,) = active(manager)
                assert still["fingerprint"] == firing["fingerprint"]
                time.sleep(0.2)
            client.cordon("node1", False)
            wait_for(lambda: not active(manager), 90, client.incidents)
            wait_for(lambda: is_resolved(hook, firing), 60, lambda: hook.alerts)
            client.stop(1.0)
            run.process.wait(30)
