"""For every alert what makes it fire and what must not: series as promtool writes them, one value a minute."""

from dataclasses import dataclass

Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """`fires` is seen at `at`, with the labels of `labels`; `quiet` is a near miss at the same time."""

    fires: Series
    quiet: Series
    at: str = "20m"
    labels: tuple[tuple[str, str], ...] = ()


def _job(state: str, value: str = "1x60") -> Series:
    return {f'holdfast_job_state{{job="a",state="{state}"}}': value}


JOB = (("job", "a"),)
NODE = (("node", "n1"),)

CASES = {
    "HoldfastJobFailed": Case(_job("failed"), _job("failed", "0x60"), labels=(*JOB, ("state", "failed"))),
    "HoldfastJobStandsStill": Case(
        _job("running") | {'holdfast_rank_progress_age_seconds{job="a",rank="0",node="n1"}': "0+60x60"},
        # One rank has long stopped reporting, the other steps.
        _job("running")
        | {
            'holdfast_rank_progress_age_seconds{job="a",rank="0",node="n1"}': "0+60x60",
            'holdfast_rank_progress_age_seconds{job="a",rank="1",node="n1"}': "1x60",
        },
        labels=JOB,
    ),
    "HoldfastJobPaused": Case(
        {'holdfast_job_pause_seconds{job="a",state="busy"}': "0+60x60"},
        {
            'holdfast_job_pause_seconds{job="a",state="busy"}': "0+60x14 0x60",
            'holdfast_job_pause_seconds{job="a",state="idle"}': "0+60x60",
        },
        labels=JOB,
    ),
    "HoldfastJobRecoversLong": Case(
        _job("recovering"),
        _job("recovering", "1x5 0x60"),
        labels=(*JOB, ("state", "recovering")),
    ),
    "HoldfastJobWaitsForNodes": Case(
        _job("pending") | {'holdfast_job_queued{job="a"}': "0x60"},
        # The nodes are there, and other jobs have them.
        _job("pending") | {'holdfast_job_queued{job="a"}': "1x60"},
        labels=(*JOB, ("state", "pending")),
    ),
    "HoldfastGoodputLow": Case(
        {
            'holdfast_job_goodput_ratio{job="a"}': "0.8x60",
            'holdfast_job_wall_seconds{job="a"}': "5000x60",
            'holdfast_job_queued_seconds{job="a"}': "600x60",
        },
        # It began ten minutes ago, whenever it was submitted.
        {
            'holdfast_job_goodput_ratio{job="a"}': "0.8x60",
            'holdfast_job_wall_seconds{job="a"}': "5000x60",
            'holdfast_job_queued_seconds{job="a"}': "4400x60",
        },
        labels=JOB,
    ),
    "HoldfastRestartsOften": Case(
        {'holdfast_job_restarts_total{job="a"}': "0+1x60"},
        {'holdfast_job_restarts_total{job="a"}': "0x18 1x60"},
        labels=JOB,
    ),
    "HoldfastThroughputDropped": Case(
        _job("running") | {'holdfast_job_tokens_per_second{job="a"}': "1000x50 500x60"},
        _job("running") | {'holdfast_job_tokens_per_second{job="a"}': "1000x50 900x60"},
        at="65m",
        labels=JOB,
    ),
    "HoldfastLossNotFinite": Case(
        {'holdfast_incidents_total{kind="loss-nonfinite"}': "0x15 1x60"},
        {'holdfast_incidents_total{kind="loss-nonfinite"}': "1x60"},
        labels=(("kind", "loss-nonfinite"),),
    ),
    "HoldfastControllerDown": Case(
        {'up{job="holdfast",instance="c"}': "1x5 0x60"},
        {'up{job="holdfast",instance="c"}': "1x60", 'up{job="other",instance="c"}': "0x60"},
        labels=(("job", "holdfast"), ("instance", "c")),
    ),
    "HoldfastControllerOverloaded": Case(
        {"holdfast_controller_loop_lag_seconds": "0.9x60"},
        {"holdfast_controller_loop_lag_seconds": "0.9x3 0.1 0.9x3 0.1 0.9x3 0.1 0.9x3 0.1 0.1x60"},
    ),
    "HoldfastControllerBug": Case(
        {"holdfast_controller_bugs_total": "0x15 1x60"}, {"holdfast_controller_bugs_total": "4x60"}
    ),
    "HoldfastMalformedFrames": Case(
        {"holdfast_malformed_frames_total": "0x15 1x60"}, {"holdfast_malformed_frames_total": "9x60"}
    ),
    "HoldfastNodeDown": Case(
        {'holdfast_node_up{node="n1"}': "0x60"}, {'holdfast_node_up{node="n1"}': "1x18 0 1x60"}, labels=NODE
    ),
    "HoldfastManyNodesDown": Case(
        {f'holdfast_node_up{{node="n{i}",instance="c"}}': "0x60" if i < 3 else "1x60" for i in range(20)},
        {f'holdfast_node_up{{node="n{i}",instance="c"}}': "0x60" if i < 1 else "1x60" for i in range(20)},
        labels=(("instance", "c"),),
    ),
    "HoldfastIncidentDrags": Case(
        {"holdfast_open_incidents": "1x60"}, {"holdfast_open_incidents": "1x20 0 1x60"}, at="40m"
    ),
    "HoldfastCommandsRefused": Case(
        {'holdfast_commands_total{result="error"}': "0x10 2 4 6 8 8x60"},
        {
            'holdfast_commands_total{result="error"}': "0x10 1 1 2 2x60",
            'holdfast_commands_total{result="ok"}': "0+9x60",
        },
        labels=(("result", "error"),),
    ),
    "HoldfastStoreRefuses": Case(
        {'holdfast_host_checkpoint_failing{node="n1"}': "0x5 1x60"},
        {'holdfast_host_checkpoint_failing{node="n1"}': "0x5 1 1 0 0 1 1 0 0 0x60"},
        labels=NODE,
    ),
    "HoldfastCheckpointOld": Case(
        {'holdfast_job_at_risk_seconds{job="a",fault="job"}': "8000x60"},
        {
            'holdfast_job_at_risk_seconds{job="a",fault="job"}': "7000x60",
            'holdfast_job_at_risk_seconds{job="a",fault="node"}': "8000x60",
        },
        labels=(*JOB, ("fault", "job")),
    ),
    "HoldfastSnapshotOld": Case(
        {'holdfast_job_at_risk_seconds{job="a",fault="worker"}': "4000x60"},
        {'holdfast_job_at_risk_seconds{job="a",fault="worker"}': "3000x60"},
        labels=(*JOB, ("fault", "worker")),
    ),
    "HoldfastSnapshotRepaired": Case(
        {'holdfast_host_snapshot_repaired_chunks_total{node="n1"}': "0x10 1x60"},
        {'holdfast_host_snapshot_repaired_chunks_total{node="n1"}': "3x60"},
        labels=NODE,
    ),
    "HoldfastHostMemoryLow": Case(
        {
            'holdfast_host_memory_used_bytes{node="n1"}': "97x60",
            'holdfast_host_memory_total_bytes{node="n1"}': "100x60",
        },
        {
            'holdfast_host_memory_used_bytes{node="n1"}': "90x60",
            'holdfast_host_memory_total_bytes{node="n1"}': "100x60",
        },
        labels=NODE,
    ),
    "HoldfastGpuHot": Case(
        {'holdfast_gpu_temperature_celsius{node="n1",gpu="0"}': "91x60"},
        {'holdfast_gpu_temperature_celsius{node="n1",gpu="0"}': "91x3 80x60"},
        labels=(*NODE, ("gpu", "0")),
    ),
    "HoldfastGpuMemoryErrors": Case(
        {'holdfast_gpu_ecc_uncorrected_volatile_total{node="n1",gpu="0"}': "0x10 2x60"},
        {'holdfast_gpu_ecc_uncorrected_volatile_total{node="n1",gpu="0"}': "2x60"},
        labels=(*NODE, ("gpu", "0")),
    ),
}
