"""/metrics: valid, complete, and fast at 12,288 ranks."""

import math
import shutil
import subprocess
import time
from collections import Counter

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from holdfast.agent.collectors.gpu import GpuCollector
from holdfast.agent.collectors.host import HostCollector
from holdfast.controller.http.metrics import Metrics
from tests.agent.support.fake_nvml import Board, FakeNvml
from tests.controller.support.fake_facade import FakeFacade, llm_175b


def scrape(facade: FakeFacade) -> str:
    return Metrics().scrape(facade)().decode()


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    family = found.get(name) or found[name.removesuffix("_total")]
    values = [s.value for s in family.samples if s.name == name and labels.items() <= s.labels.items()]
    assert len(values) == 1, (name, labels, values)
    return values[0]


PROMTOOL = shutil.which("promtool")


@pytest.fixture
def facade() -> FakeFacade:
    facade = FakeFacade()
    facade.warm_up(20)
    return facade


def test_every_family_is_documented_typed_and_prefixed(facade: FakeFacade) -> None:
    for family in families(scrape(facade)).values():
        assert family.name.startswith("holdfast_")
        assert family.documentation.endswith(".")
        assert family.type in ("gauge", "counter", "summary")
        for sample in family.samples:
            assert math.isfinite(sample.value)
            assert sample.labels.keys() <= {
                "job", "node", "rank", "gpu", "nic", "state", "kind", "phase", "reason", "result", "version", "fault",
                "part", "test", "metric", "condition", "switch", "subject", "receiver", "outcome",
            }  # fmt: skip


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_finds_nothing_in_names_and_types(facade: FakeFacade) -> None:
    """With every gauge that this host and a GPU with all of its counters send."""
    facade.fault(rank=3)
    facade.recover()
    gpu = GpuCollector(FakeNvml([Board("GPU-a", links=18, ecc=5, rows=(1, 2, 1, 0))]), slow_every=1).collect()[0].values
    facade.node_rows[0]["host"] = HostCollector().collect() | {"snapshot_repaired_chunks": 2.0}
    facade.node_rows[0]["gpus"][0]["values"] = gpu
    text = scrape(facade)
    assert value(families(text), "holdfast_gpu_nvlink_replay_errors_total", node="node0", gpu="0") == 1000
    assert value(families(text), "holdfast_gpu_ecc_uncorrected_volatile_total", node="node0", gpu="0") == 15
    assert families(text)["holdfast_host_disk_written_bytes"].type == "counter"
    assert PROMTOOL is not None
    found = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    wrong = "# HELP holdfast_x_count x.\n# TYPE holdfast_x_count gauge\nholdfast_x_count 1\n"
    found = subprocess.run([PROMTOOL, "check", "metrics"], input=wrong, capture_output=True, text=True, timeout=60)
    assert "holdfast_x_count" in found.stderr


def test_no_family_appears_twice(facade: FakeFacade) -> None:
    types = [line for line in scrape(facade).splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


def test_reports_the_job_the_ranks_and_the_nodes(facade: FakeFacade) -> None:
    found = families(scrape(facade))
    assert value(found, "holdfast_job_step", job="demo") == facade.step
    assert value(found, "holdfast_job_state", job="demo", state="running") == 1
    assert value(found, "holdfast_job_state", job="demo", state="failed") == 0
    assert value(found, "holdfast_rank_step", job="demo", node="node1", rank="5") == facade.step
    assert value(found, "holdfast_rank_running", rank="5") == 1
    assert value(found, "holdfast_job_mfu_ratio", job="demo") == 0.41
    assert value(found, "holdfast_job_step_planned_seconds", job="demo") == 0.25
    assert value(found, "holdfast_worker_mfu_ratio", job="demo", node="node1", rank="5") == 0.41
    assert value(found, "holdfast_worker_step_part_seconds", rank="5", part="bubble") == 0.01
    assert value(found, "holdfast_worker_memory_bytes", rank="5") == 1 << 30
    assert value(found, "holdfast_nodes", state="spare") == 1
    assert value(found, "holdfast_nodes", state="lost") == 0
    assert value(found, "holdfast_node_up", node="node0") == 1
    assert value(found, "holdfast_node_info", node="node0", switch="tor-0") == 1
    assert value(found, "holdfast_node_state", node="node0", state="healthy") == 1
    assert {s.labels["state"] for s in found["holdfast_node_state"].samples} == {"healthy", "spare"}
    assert value(found, "holdfast_job_slow_cost_ratio", job="demo") == 0.03
    assert value(found, "holdfast_journal_failing") == 0
    assert value(found, "holdfast_certificate_expiry_timestamp_seconds", subject="node0") == facade.started + 9e6
    assert value(found, "holdfast_notifications_total", receiver="slack", outcome="failed") == 1
    assert value(found, "holdfast_gpu_temperature_celsius", node="node0", gpu="3") == 63
    assert value(found, "holdfast_host_cpu_ratio", node="node0") == 0.31
    assert value(found, "holdfast_nic_speed_bytes_per_second", node="node0", nic="mlx5_1") == 50e9
    assert value(found, "holdfast_findings_total", kind="worker-hang") == 0


def test_an_incident_leaves_its_kind_and_its_phases(facade: FakeFacade) -> None:
    facade.fault(rank=3)
    facade.tick(3.0)
    found = families(scrape(facade))
    assert value(found, "holdfast_rank_running", rank="3") == 0
    assert value(found, "holdfast_open_incident_age_seconds") == pytest.approx(
        facade.now - facade.known_incidents[0]["opened"]
    )
    facade.recover()
    found = families(scrape(facade))
    assert value(found, "holdfast_incidents_total", kind="worker-killed") == 1
    samples = {(s.name, s.labels["phase"]): s.value for s in found["holdfast_incident_phase_seconds"].samples}
    assert samples["holdfast_incident_phase_seconds_count", "restore"] == 1
    assert samples["holdfast_incident_phase_seconds_sum", "restore"] == pytest.approx(0.9)
    assert value(found, "holdfast_job_restarts_total", job="demo") == 1


def test_unknown_numbers_have_no_sample_and_no_job_is_no_error() -> None:
    facade = FakeFacade()  # no step yet: its loss is NaN, its step time None
    found = families(scrape(facade))
    assert found["holdfast_job_loss"].samples == []
    assert found["holdfast_rank_step_seconds"].samples == []
    facade.job_state = None
    found = families(scrape(facade))
    assert found["holdfast_job_state"].samples == []
    assert found["holdfast_rank_step"].samples == []


def test_strange_names_are_escaped_and_strange_gauges_left_out(facade: FakeFacade) -> None:
    name = 'a"b\\c\nd'
    facade.node_rows[0]["name"] = name
    facade.node_rows[0]["host"] = {"load1": math.inf, "Bad name!": 1.0, "idle": math.nan}
    found = families(scrape(facade))
    assert value(found, "holdfast_node_up", node=name) == 1
    assert value(found, "holdfast_rank_running", node=name, rank="0") == 1
    assert "holdfast_host_Bad" not in scrape(facade)
    assert [s.value for s in found["holdfast_host_load1"].samples] == [math.inf]


def test_12288_ranks_take_no_time_of_their_square() -> None:
    facade = llm_175b()
    facade.warm_up(20)
    metrics = Metrics()
    begin = time.process_time()  # what others on this host do is not its fault
    lines = metrics.scrape(facade)().decode().splitlines()
    assert time.process_time() - begin < 5.0
    series = Counter(line.partition("{")[0] for line in lines)
    assert series["holdfast_rank_step"] == 12_288
    assert series["holdfast_gpu_power_watts"] == 12_296
    assert series["holdfast_node_up"] == 1_537


def test_what_diagnostics_said_last(facade: FakeFacade) -> None:
    found = families(scrape(facade))
    assert value(found, "holdfast_diagnostic_state", node="node0", test="gemm") == 2
    assert value(found, "holdfast_diagnostic_state", node="node1", test="nvml") == 0
    assert value(found, "holdfast_diagnostic_value", node="node0", test="gemm", metric="flops") == 4e10
    assert len(found["holdfast_diagnostic_value"].samples) == 1


def test_every_family_of_a_job_has_its_name_and_two_jobs_do_not_mix(facade: FakeFacade) -> None:
    other = facade.add_job("eval", priority=7, pp=1, dp=2, tp=1, per_node=2)
    other.warm_up(3)
    found = families(scrape(facade))
    of_jobs = {
        name: {sample.labels.get("job") for sample in family.samples}
        for name, family in found.items()
        if name.startswith(("holdfast_job_", "holdfast_rank_", "holdfast_worker_", "holdfast_lost_"))
        or name in ("holdfast_gpu_self_slowdown_ratio", "holdfast_gpu_induced_wait_seconds")
    }
    assert len(of_jobs) > 20
    assert {name: jobs for name, jobs in of_jobs.items() if jobs != {"demo", "eval"}} == {}
    assert value(found, "holdfast_job_step", job="demo") == 19
    assert value(found, "holdfast_job_step", job="eval") == 2
    assert value(found, "holdfast_job_priority", job="eval") == 7
    assert value(found, "holdfast_job_queued", job="eval") == 0
    assert value(found, "holdfast_job_queued_seconds", job="eval") == 6
    assert value(found, "holdfast_lost_seconds_total", job="eval", reason="recovery") == 4.5
    assert value(found, "holdfast_rank_step", job="demo", node="node1", rank="5") == 19
    assert value(found, "holdfast_rank_step", job="eval", node="job-2-node0", rank="1") == 2
    assert value(found, "holdfast_gpu_self_slowdown_ratio", job="eval", node="job-2-node0", gpu="1", rank="1") == 1
    assert value(found, "holdfast_jobs", state="running") == 2
    text = scrape(facade)
    samples = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    types = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


def test_how_a_job_ended_is_seen_for_an_hour_and_of_a_failed_one_for_a_day(facade: FakeFacade) -> None:
    stopped, failed = facade.add_job("eval", pp=1, dp=2, tp=1), facade.add_job("tune", pp=1, dp=2, tp=1)
    facade.add_job("third", pp=1, dp=2, tp=1)
    stopped.job_state, stopped.ended_at = "stopped", facade.now
    failed.job_state, failed.ended_at = "failed", facade.now
    facade.now += 3500
    found = families(scrape(facade))
    for job, how in (("eval", "stopped"), ("tune", "failed")):
        assert value(found, "holdfast_job_state", job=job, state=how) == 1
        assert value(found, "holdfast_job_health", job=job, condition=how) == 1
        assert value(found, "holdfast_job_health", job=job, condition="well") == 0
    assert value(found, "holdfast_jobs", state="failed") == 1
    assert {s.labels["job"] for s in found["holdfast_job_step"].samples} <= {"demo", "third"}
    facade.now += 200
    for name in ("holdfast_job_state", "holdfast_job_health"):
        assert {s.labels["job"] for s in families(scrape(facade))[name].samples} == {"demo", "tune", "third"}
    facade.now += 86400
    assert {s.labels["job"] for s in families(scrape(facade))["holdfast_job_state"].samples} == {"demo", "third"}


def test_the_name_of_a_failed_job_is_the_new_jobs(facade: FakeFacade) -> None:
    failed = facade.add_job("eval", pp=1, dp=2, tp=1)
    failed.job_state, failed.ended_at = "failed", facade.now
    again = facade.add_job("eval", pp=1, dp=2, tp=1)
    assert again.id != failed.id
    assert value(families(scrape(facade)), "holdfast_job_state", job="eval", state="failed") == 0
    assert value(families(scrape(facade)), "holdfast_job_health", job="eval", condition="failed") == 0
