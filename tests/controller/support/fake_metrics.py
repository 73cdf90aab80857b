"""What the fake controller counts."""

from holdfast.controller.http.facade import Json
from tests.controller.support.fake_job import FakeJob


def fake_metrics(of: FakeJob) -> Json:
    return {
        "frames_total": of.serial * of.num_nodes,
        "frame_bytes_total": of.serial * of.num_nodes * 900,
        "events_total": 12,
        "malformed_total": 0,
        "refused_total": {"step": 2},
        "alerts_suppressed_total": 0,
        "bugs_total": 0,
        "commands_total": {"ok": 5},
        "steps_total": max(0, of.step + 1) * of.world,
        "journal_seconds_total": 0.25,
        "journal_failing": False,
        "loop_lag_seconds": 0.0004,
        "certificates": {"controller": of.started + 9e6, "node0": of.started + 9e6},
        "findings_total": {"worker-killed": len(of.known_incidents)},
        "incidents_total": {"worker-killed": len(of.known_incidents)},
        "spans_total": 1000,
        "spans_lost_total": 3,
        "notifications_total": {"slack": {"sent": 4, "failed": 1, "refused": 0}},
        "diagnoses_running": 0,
        "diagnostics": [
            {"node": "node0", "test": "gemm", "metric": "flops", "grade": "fail", "value": 4e10},
            {"node": "node0", "test": "gemm", "metric": "", "grade": "pass", "value": None},
            {"node": "node1", "test": "nvml", "metric": "", "grade": "pass", "value": None},
        ],
    }


def fake_job_metrics(job: FakeJob, ranks: Json) -> Json:
    """One job's. `ranks` as the controller reports them."""
    return {
        "job": job.document(),
        "ranks": ranks,
        "blame": {"self_ratio": dict.fromkeys(range(job.world), 1.0), "induced_s": {1: 2.5}, "victim_s": {}},
        "lost_seconds": {"recovery": 4.5},
        "productive_seconds": 99.0,
        "unsaved_seconds": 1.0,
        "queued_seconds": 6.0,
        "wall_seconds": 110.5,
        "slow_cost": 0.03,
    }
