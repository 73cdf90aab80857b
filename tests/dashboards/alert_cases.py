"""For every alert what makes it fire and what must not: series as promtool writes them, one value a minute."""

from dataclasses import dataclass

Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """`fires` is seen at `at`, with the labels of `labels`; `quiet` is an honest situation that looks like it, at the
    same time."""

    fires: Series
    quiet: Series
    at: str = "20m"
    labels: tuple[tuple[str, str], ...] = ()


def _health(condition: str, value: str = "1x400") -> Series:
    return {f'holdfast_job_health{{job="a",condition="{condition}"}}': value}


def _job(name: str, value: str, labels: str = "") -> Series:
    return {f'holdfast_{name}{{job="a"{labels}}}': value}


def _nodes(down: dict[int, str], of: int, switches: int = 4) -> Series:
    """`of` nodes, some of them with their own values, `switches` in turn."""
    up = {f'holdfast_node_up{{node="n{i}",instance="c"}}': down.get(i, "1x200") for i in range(of)}
    info = {f'holdfast_node_info{{node="n{i}",instance="c",switch="s{i % switches}"}}': "1x200" for i in range(of)}
    return up | info


JOB = (("job", "a"),)
NODE = (("node", "n1"),)
INSTANCE = (("instance", "c"),)
LOST = "1x14 0x200"
STEADY = _health("well") | _job("job_wall_seconds", "20000x400") | _job("job_queued_seconds", "0x400")

CASES = {
    "HoldfastJobFailed": Case(
        _health("failed"),
        # Stopped by a person, after it had failed once and was submitted again.
        _health("failed", "1x5 0x200") | _health("stopped", "0x15 1x200"),
        labels=(*JOB, ("condition", "failed")),
    ),
    "HoldfastJobStandsStill": Case(
        _health("no progress", "0x5 1x200"),
        # Steps as long as the limit, and each ends after all.
        _health("no progress", "0 1 1 1 0 0 1 1 1 0 0 1 1 1 0 0 1 1 1 1 0x200"),
        labels=(*JOB, ("condition", "no progress")),
    ),
    "HoldfastJobPaused": Case(
        _health("paused"),
        _health("paused", "0x7 1x200"),  # an evaluation of thirteen minutes
        labels=(*JOB, ("condition", "paused")),
    ),
    "HoldfastJobRecoversLong": Case(
        _health("recovering", "1x12 0x200") | _health("starting", "0x12 1x200"),
        _health("recovering", "1x8 0x200") | _health("starting", "0x200") | _health("well", "0x8 1x200"),
        labels=JOB,
    ),
    "HoldfastJobWaitsForNodes": Case(
        _health("waiting for nodes") | _job("job_queued", "0x60"),
        # The nodes are there, and other jobs have them.
        _health("waiting for nodes") | _job("job_queued", "1x60"),
        labels=(*JOB, ("condition", "waiting for nodes")),
    ),
    "HoldfastStragglerCosts": Case(
        # Blame does not name it in each look.
        _health("slow", "1 1 0 1 1 0 1 1 0 1 1 0 1 1 0 1 1 0 1 1 0 1 1 1x60") | _job("job_slow_cost_ratio", "0.07x60"),
        # Ten minutes of it, or a cost below what the health counts.
        _health("slow", "0x8 1x9 0x60") | _job("job_slow_cost_ratio", "0.07x60"),
        labels=JOB,
    ),
    "HoldfastGoodputLow": Case(
        _job("lost_seconds_total", "0+12x200", ',reason="restore"')
        | _job("job_wall_seconds", "9000+60x200")
        | _job("job_queued_seconds", "600x200"),
        # Half of its first day was lost, and since then nothing.
        _job("lost_seconds_total", "40000x200", ',reason="restore"')
        | _job("job_goodput_ratio", "0.5x200")
        | _job("job_wall_seconds", "86400+60x200")
        | _job("job_queued_seconds", "600x200"),
        at="120m",
        labels=JOB,
    ),
    "HoldfastRestartsOften": Case(
        _job("job_restarts_total", "0+1x60"),
        # Forty in its life, and two within the hour.
        _job("job_restarts_total", "40x10 41x5 42x60"),
        labels=JOB,
    ),
    "HoldfastThroughputDropped": Case(
        # The drop has lasted for an hour and a half.
        STEADY | _job("job_ranks", "8x400") | _job("job_tokens_per_second", "1000x225 500x190"),
        # A node less: half of the ranks, half of the tokens.
        STEADY | _job("job_ranks", "8x225 4x190") | _job("job_tokens_per_second", "1000x225 500x190"),
        at="300m",
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
        labels=(("job", "holdfast"), *INSTANCE),
    ),
    "HoldfastControllerOverloaded": Case(
        {"holdfast_controller_loop_lag_seconds": "0.9x60"},
        {"holdfast_controller_loop_lag_seconds": "0.01x10 0.9 0.01x4 0.9 0.01x60"},  # a journal sweep, now and then
    ),
    "HoldfastControllerBug": Case(
        {"holdfast_controller_bugs_total": "0x15 1x60"}, {"holdfast_controller_bugs_total": "4x60"}
    ),
    "HoldfastJournalNotWritable": Case(
        {"holdfast_journal_failing": "0x5 1x60"},
        {"holdfast_journal_failing": "0x5 1 1 0 0 1 1 1 0 0 1 1 0 1 1 1 1x2 0x60"},
    ),
    "HoldfastNotificationFailed": Case(
        {'holdfast_notifications_total{receiver="slack",outcome="refused",instance="c"}': "2x10 3x60"},
        {
            'holdfast_notifications_total{receiver="slack",outcome="failed",instance="c"}': "2x10 5x60",
            'holdfast_notifications_total{receiver="slack",outcome="sent",instance="c"}': "0+1x60",
        },
        labels=(*INSTANCE, ("receiver", "slack")),
    ),
    "HoldfastSpansLost": Case(
        {"holdfast_spans_lost_total": "0+20x90", "holdfast_spans_total": "0+1000x90"},
        # One burst at a restart; and of a million, a few.
        {"holdfast_spans_lost_total": "0x20 30000x10 30000+1x60", "holdfast_spans_total": "0+1000000x90"},
        at="50m",
    ),
    "HoldfastCertificateEnds": Case(
        {
            f'holdfast_certificate_expiry_timestamp_seconds{{subject="{who}",instance="c"}}': at
            for who, at in (("controller", "99e6x90"), ("n1", "25e5x90"), ("n2", "2e6x90"))
        },
        # Renewed while the alert was pending.
        {'holdfast_certificate_expiry_timestamp_seconds{subject="n1",instance="c"}': "2e6x50 99e6x90"},
        at="70m",
        labels=INSTANCE,
    ),
    "HoldfastMalformedFrames": Case(
        {"holdfast_malformed_frames_total": "0x12 5 10 15 20x60"}, {"holdfast_malformed_frames_total": "9x15 10x60"}
    ),
    "HoldfastNodeDown": Case(
        {'holdfast_node_up{node="n1"}': "0x60", 'holdfast_node_state{node="n1",state="lost"}': "1x60"},
        # Switched off for a repair.
        {'holdfast_node_up{node="n1"}': "0x60", 'holdfast_node_state{node="n1",state="cordoned"}': "1x60"},
        labels=NODE,
    ),
    "HoldfastNodeFlaps": Case(
        {'holdfast_node_up{node="n1"}': "1x3 0 1x3 0 1x3 0 1x60"},
        {'holdfast_node_up{node="n1"}': "0x3 1x6 0 1x60"},  # started, and restarted once
        labels=NODE,
    ),
    "HoldfastManyNodesDown": Case(
        _nodes({0: LOST, 1: LOST, 2: LOST}, 20),
        # One of four, which is a quarter; in a large cluster three that were switched off a week ago.
        _nodes({1: LOST}, 4) | {f'holdfast_node_up{{node="old{i}",instance="d"}}': "0x200" for i in range(8)},
        labels=INSTANCE,
    ),
    "HoldfastSwitchDown": Case(
        _nodes({1: LOST, 17: LOST}, 40, switches=16),
        _nodes({1: LOST, 2: LOST, 3: LOST}, 40, switches=4),  # three nodes, each at another switch
        labels=(*INSTANCE, ("switch", "s1")),
    ),
    "HoldfastNoSpare": Case(
        {'holdfast_nodes{state="spare"}': "2 1 0x200", 'holdfast_jobs{state="running"}': "1x200"},
        # A cluster that never had one.
        {'holdfast_nodes{state="spare"}': "0x200", 'holdfast_jobs{state="running"}': "1x200"},
        at="60m",
        labels=(("state", "spare"),),
    ),
    "HoldfastIncidentDrags": Case(
        {"holdfast_open_incident_age_seconds": "0+60x60", "holdfast_open_incidents": "1x60"},
        # One after another: there is always one.
        {"holdfast_open_incident_age_seconds": "0+60x20 0+60x20 0+60x20", "holdfast_open_incidents": "1x60"},
        at="40m",
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
        # It refuses now this node, now that one.
        {
            'holdfast_host_checkpoint_failing{node="n1",instance="c"}': "0x5 1 1 0 1 1 0 1 1 0 1 1 0 1 1 0 1x60",
            'holdfast_host_checkpoint_failing{node="n2",instance="c"}': "0x5 0 1 1 0 1 1 0 1 1 0 1 1 0 1 1 0x60",
        },
        {'holdfast_host_checkpoint_failing{node="n1",instance="c"}': "0x5 1 1 0 0 1 1 0 0 0x60"},
        labels=INSTANCE,
    ),
    "HoldfastNoCheckpoint": Case(
        _job("job_unsaved_seconds", "0+60x200"),  # it never made one: its age is unknown
        # An hour between two of them, less a minute.
        _job("job_at_risk_seconds", "0+60x59 0+60x59", ',fault="job"')
        | _job("job_at_risk_seconds", "8000x200", ',fault="node"')
        | _job("job_unsaved_seconds", "0+60x59 0+60x59"),
        at="70m",
        labels=JOB,
    ),
    "HoldfastSnapshotOld": Case(
        _job("job_at_risk_seconds", "4000x60", ',fault="worker"')
        | _job("job_at_risk_seconds", "60x60", ',fault="job"'),
        # That there is no checkpoint either is another alert.
        _job("job_at_risk_seconds", "4000x60", ',fault="worker"')
        | _job("job_at_risk_seconds", "4000x60", ',fault="job"'),
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
        # A peak while a checkpoint is written.
        {
            'holdfast_host_memory_used_bytes{node="n1"}': "90x12 97x3 90x60",
            'holdfast_host_memory_total_bytes{node="n1"}': "100x60",
        },
        labels=NODE,
    ),
    "HoldfastGpuHot": Case(
        {f'holdfast_gpu_temperature_celsius{{node="n1",gpu="{gpu}"}}': f"{85 + gpu}x60" for gpu in range(8)},
        {'holdfast_gpu_temperature_celsius{node="n1",gpu="0"}': "91x3 80x60"},
        labels=NODE,
    ),
    "HoldfastGpuMemoryErrors": Case(
        {'holdfast_gpu_ecc_uncorrected_volatile_total{node="n1",gpu="0"}': "0x10 2x60"},
        # Errors of last month, and a driver that was loaded anew.
        {'holdfast_gpu_ecc_uncorrected_volatile_total{node="n1",gpu="0"}': "2x10 0x60"},
        labels=(*NODE, ("gpu", "0")),
    ),
}
