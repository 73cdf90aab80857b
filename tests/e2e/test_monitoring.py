"""Every panel shows something of a real job with faults, and an alert goes all the way to a webhook."""

import re
from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from holdfast.dashboards.boards import BOARDS
from holdfast.plan.planned_step import PlannedStep
from holdfast.trainer.__main__ import parse
from holdfast.trainer.settings.planned import with_planned
from holdfast.trainer.settings.written import written
from tests.e2e import monitoring
from tests.e2e.daemons import SMALL_MODEL, Commands, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        monitoring.PROMETHEUS is None or monitoring.ALERTMANAGER is None,
        reason="Prometheus and Alertmanager are not installed (Debian: prometheus prometheus-alertmanager)",
    ),
]

# This test is about what is shown of faults, not about heartbeats and steps that a busy machine delays.
PATIENT = ("--hang-floor", "8s", "--silence-floor", "8s")
WINDOWS = {"$__rate_interval": "10s", "$__range": "5m"}


def filled(expr: str, job: str) -> str:
    """The query as Grafana would send it."""
    for name, value in {"$job": job, "$node": ".*", **WINDOWS}.items():
        expr = expr.replace(name, value)
    assert "$" not in re.sub(r"\$\d", "", expr), expr
    return expr


def test_panels_have_data_and_an_alert_reaches_the_webhook(holdfast: Commands, tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'store'}"
    with (
        LocalCluster(tmp_path / "cluster", nodes=2, slots=2, controller_flags=PATIENT) as cluster,
        monitoring.gpu_node(cluster.grpc),
        monitoring.Webhook() as webhook,
        monitoring.stack(tmp_path / "stack", cluster.http, webhook.url) as prometheus,
    ):
        argv = ("--nnodes", "2", "--nproc-per-node", "2", "--name", "watched", "-m", "holdfast.trainer")
        mesh = ("--dp", "2", "--tp", "2", "--steps", "1000000", "--store", store, "--checkpoint-every", "5")
        mesh += SMALL_MODEL
        step_s = PlannedStep(1.0, (0.3,), (0.6,), (0.05,), 0.0, (0.02,), (0.03,))
        (tmp_path / "planned.toml").write_text(written(with_planned(parse(mesh), step_s, "gpu", 4)))
        run = holdfast.start(
            "run", "--controller", cluster.http, *argv, "--config", str(tmp_path / "planned.toml"), *mesh
        )
        client = cluster.client

        def step() -> int:
            assert run.process.poll() is None, run.err[-3000:]
            job = client.job()
            return -1 if job is None or job["step"] is None else int(job["step"])

        wait_for(lambda: step() >= 15, 120)
        wait_for(lambda: monitoring.ask(prometheus, "holdfast_job_step > 10"), 60)
        # Without the made-up node, which never replies.
        diagnosis = client.diagnose(["node0", "node1"], "quick", ["memory"], busy=True)
        client.inject("nan:rank1")
        wait_for(
            lambda: any(one["kind"] == "loss-nonfinite" and one["closed"] for one in client.incidents()),
            120,
            client.incidents,
        )
        client.inject("slow:rank0/load+400")  # from here on it only has to run; the processors are the diagnosis'
        wait_for(lambda: client.diagnosis(diagnosis)["state"] == "done", 120)
        after = step()
        wait_for(lambda: step() >= after + 10, 120)
        empty: dict[str, str] = {}

        def is_empty(query: str) -> bool:
            return not monitoring.ask(prometheus, filled(query, "watched"))

        def all_filled() -> bool:
            """All at once. As long as one that was empty still is, the others are not asked: they are hundreds."""
            if any(is_empty(query) for query in empty.values()):
                return False
            empty.clear()
            for board in BOARDS:
                for panel in board.panels:
                    if panel.needs in ("peak", "job-gpu"):  # no CPU has a stated one; the made-up GPUs run no job
                        continue
                    empty.update(
                        {f"{board.uid}: {panel.title}": query.expr for query in panel.queries if is_empty(query.expr)}
                    )
            return not empty

        wait_for(all_filled, 120, lambda: empty)
        wait_for(
            lambda: any(a["labels"]["alertname"] == "HoldfastLossNotFinite" for a in webhook.alerts),
            60,
            lambda: monitoring.ask(prometheus, "ALERTS"),
        )
        reported = next(a for a in webhook.alerts if a["labels"]["alertname"] == "HoldfastLossNotFinite")
        assert reported["status"] == "firing"
        assert reported["labels"]["severity"] == "warning"
        assert reported["annotations"]["runbook_url"].endswith("alerts.md#holdfastlossnotfinite")
        client.stop(1.0)
        run.process.wait(60)  # else it looks for its controller for a while
