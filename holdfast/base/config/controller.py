"""The section `controller`."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.address import check_exposure
from holdfast.base.config.parts import (
    Tls,
    check_port,
    check_positive,
    check_range,
    default_state_dir,
    tls_files,
    token_of,
)
from holdfast.base.errors import UsageError
from holdfast.base.settings import Assignments, Seconds, nearest

_TERABYTE_MB = 1 << 20
SEVERITIES = ("info", "warning", "critical")
SCHEDULERS = ("none", "slurm", "kubernetes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    listen_host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs TLS and an API token."""
    grpc_port: int = 7070
    """Port for agents; 0 picks a free one."""
    http_port: int = 7080
    """Port for the page, the API and /metrics; 0 picks a free one."""
    state_dir: Path = field(default_factory=default_state_dir)
    """Folder for incidents and the journal (~/.local/state/holdfast)."""
    tls_ca: Path | None = None
    """Certificate authority (PEM) that agents' certificates must come from."""
    tls_cert: Path | None = None
    """The controller's certificate (PEM)."""
    tls_key: Path | None = None
    """The key of that certificate (PEM)."""
    api_token: str = field(default="", repr=False)
    """The bearer token that HTTP clients must send. Prefer the file: other users of the host can read flags."""
    api_token_file: Path | None = None
    """File with the API token."""
    reader_token: str = field(default="", repr=False)
    """A second token with read-only access. Prefer the file."""
    reader_token_file: Path | None = None
    """File with the reader's token."""
    insecure: bool = False
    """Allow listening beyond loopback without TLS and token."""
    heartbeat_interval: Seconds = field(default=0.25, metadata={"was": "cadence"})
    """Heartbeat interval of an agent in a small cluster. Shorter finds faults sooner and costs more CPU."""
    silence_floor: Seconds = 0.8
    """Least time until a node counts as silent. Lower finds dead nodes sooner, with more false positives."""
    silence_beats: float = 3.0
    """Missed heartbeats until a node counts as silent."""
    hang_steps: float = 2.0
    """A worker that cannot continue is dead after this many median steps plus the hang floor."""
    hang_floor: Seconds = 0.75
    """Time added to the hang steps; half of it if the process is stopped. Raise it if step times vary much."""
    hang_limit_start: Seconds = 10.0
    """Time until a hung worker is dead before its first step, or in a phase without steps."""
    stuck_limit: Seconds = 180.0
    """Time without activity of any rank in an operation that all have entered: what a network may take to be back."""
    pause_limit: Seconds = 1800.0
    """Longest pause of a job whose blocking worker is busy (computes, reads, writes, moves bytes)."""
    idle_limit: Seconds = 60.0
    """Longest pause of a job whose blocking worker is idle. Doubles where a restart led to the same pause."""
    idle_limit_start: Seconds = 300.0
    """Longest idle pause before the first step of a worker, or in a phase without steps."""
    exit_limit: Seconds = 600.0
    """Longest wait for idle ranks after another rank ended with exit code 0 and steps have stopped. Then the ranks are
    stopped, and the job is finished. Busy ranks are waited for until the pause limit."""
    pause_alert: Seconds = 300.0
    """Time until a pause alerts people, unless an earlier pause at the same place took as long."""
    agent_grace: Seconds = 10.0
    """Time until a node without its agent is lost, if training stands still."""
    spare_grace: Seconds = 3.0
    """The same with a spare available. At most 0.75 s for a node whose workers failed with it."""
    grow_after: Seconds = 30.0
    """Time for which more nodes must be available before a shrunken job grows again."""
    restart_attempts: int = field(default=3, metadata={"was": "tries"})
    """Restart attempts in a row with the same traceback and no progress, until the job is marked failed."""
    restart_attempts_fault: int = field(default=5, metadata={"was": "tries_fault"})
    """The same for faults outside of the script: kills, crashes, hangs."""
    restart_backoff: Seconds = 30.0
    """Longest wait between restart attempts that the program ends without progress: they wait 0, 1, 2, 4, ... seconds.
    Longer costs less where every attempt fails, and more where the cause has passed; 0 for no wait."""
    node_failures: int = field(default=3, metadata={"was": "offences"})
    """Node failures within a day until the node is replaced, if there is another node."""
    max_evictions: int = 6
    """Most evictions within an hour. Beyond them the nodes are not the cause, and no node is evicted."""
    start_timeout: Seconds = 120.0
    """How long the workers of a generation may take to start."""
    stop_timeout: Seconds = 20.0
    """How long the workers of a generation may take to exit."""
    record: Path | None = None
    """File to record events and decisions in, for `holdfast replay`; compressed if named *.gz."""
    max_restarts: int = -1
    """Restarts until a job is marked failed, if the job sets no limit; -1: no limit while it makes progress."""
    detectors: Assignments = ()
    """Limits and actions of detectors, e.g. `gpu-throttle.action=off`; in the file, `[controller.detectors.NAME]`."""
    notify: tuple[str, ...] = ()
    """Receivers of notifications, as KIND=URL, KIND=@FILE or KIND=$VARIABLE: see monitoring.md."""
    notify_from: str = "warning"
    """Least severity of notifications: `info`, `warning`, or `critical`."""
    notify_resend: Seconds = 60.0
    """Time until an open incident is sent again to Alertmanager. Must be shorter than its `resolve_timeout`."""
    notify_remind: Seconds = 4 * 3600.0
    """Time until a failed job that nobody acted on is sent again to receivers other than Alertmanager."""
    notify_digest: Seconds = 3600.0
    """Time between two digests of incidents that were over within ten seconds; 0: no digest."""
    page_url: str = ""
    """Address of the page and the runbook, for links in notifications. Default: the address that the controller
    listens on."""
    scheduler: str = "none"
    """Scheduler to reconcile with: `slurm` drains evicted nodes, `kubernetes` cordons them; or `none`."""
    slurm_requeue: bool = False
    """With Slurm: requeue the whole Slurm job if too few nodes are left."""
    kubernetes_namespace: str = "holdfast"
    """With Kubernetes: namespace of the agents' pods."""
    kubernetes_selector: str = "app.kubernetes.io/name=holdfast-agent"
    """With Kubernetes: label selector of those pods."""
    sample_memory_mb: int = 256
    """Memory for millisecond traffic samples, shared by all nodes: more nodes keep shorter histories."""
    span_memory_mb: int = 64
    """Memory for the newest spans of the job, packed: the history of `holdfast blame` for a running job."""
    blame_every: Seconds = 10.0
    """Pause between two looks for the rank that is slow itself. A finding takes two looks in a row."""
    blame_share: float = 0.05
    """Share of a core that these looks may take: where one costs more, the pause is longer."""
    span_store_mb: int = 2048
    """Disk for spans under state_dir/spans, oldest removed first; 0 disables it. Needs pyarrow (holdfast[spans])."""
    span_store_age: Seconds = 7 * 86400.0
    """Age at which spans on disk are removed."""
    retention_age: Seconds = 90 * 86400.0
    """Age at which incidents, ended jobs, absent nodes and all other rows are removed from the journal. No shorter than
    the window of the detector `node-lemon`."""
    retention_incidents: int = 10_000
    """Newest incidents that the journal keeps. Open ones and the newest of each running job stay in any case."""
    retention_jobs: int = 1_000
    """Newest ended jobs that the journal keeps, with their steps."""

    def __post_init__(self) -> None:
        check_port("grpc_port", self.grpc_port)
        check_port("http_port", self.http_port)
        positive = (
            "heartbeat_interval",
            "silence_floor",
            "silence_beats",
            "hang_steps",
            "hang_limit_start",
            "stuck_limit",
            "pause_limit",
            "idle_limit",
            "idle_limit_start",
            "exit_limit",
            "pause_alert",
            "spare_grace",
            "grow_after",
            "start_timeout",
            "stop_timeout",
            "notify_resend",
            "notify_remind",
        )
        for name in (*positive, "restart_attempts", "restart_attempts_fault", "node_failures", "max_evictions"):
            check_positive(name, getattr(self, name))
        for name in (
            "silence_beats",
            "hang_steps",
            "restart_attempts",
            "restart_attempts_fault",
            "node_failures",
            "max_evictions",
        ):
            check_range(name, getattr(self, name), 0, 1_000_000)
        check_range("restart_backoff", self.restart_backoff, 0.0, 86400.0)
        check_range("heartbeat_interval", self.heartbeat_interval, 0.001, 3600.0)
        check_range("sample_memory_mb", self.sample_memory_mb, 1, _TERABYTE_MB)
        check_range("span_memory_mb", self.span_memory_mb, 1, _TERABYTE_MB)
        check_range("blame_every", self.blame_every, 0.1, 3600.0)
        check_range("blame_share", self.blame_share, 0.001, 1.0)
        check_range("span_store_mb", self.span_store_mb, 0, 512 * _TERABYTE_MB)
        check_positive("span_store_age", self.span_store_age)
        check_positive("retention_age", self.retention_age)
        check_range("retention_incidents", self.retention_incidents, 1, 1_000_000)
        check_range("retention_jobs", self.retention_jobs, 1, 1_000_000)
        if self.notify_digest:
            check_range("notify_digest", self.notify_digest, 1.0, 30 * 86400.0)
        if self.page_url and not self.page_url.startswith(("http://", "https://")):
            raise UsageError(f"page_url must begin with http:// or https://, but is {self.page_url!r}")
        if not re.fullmatch("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", self.kubernetes_namespace):
            raise UsageError(f"kubernetes_namespace is no name of a namespace: {self.kubernetes_namespace!r}")
        if self.notify_from not in SEVERITIES:
            raise UsageError(f"unknown severity {self.notify_from!r}{nearest(self.notify_from, SEVERITIES)}")
        if self.scheduler not in SCHEDULERS:
            raise UsageError(f"unknown scheduler {self.scheduler!r}{nearest(self.scheduler, SCHEDULERS)}")
        if not -1 <= self.max_restarts <= 1_000_000:
            raise UsageError(f"max_restarts must be -1 (no limit) to 1,000,000, but is {self.max_restarts}")

    def tls(self) -> Tls | None:
        return tls_files(self.tls_ca, self.tls_cert, self.tls_key)

    def token(self) -> str:
        return token_of(self.api_token, self.api_token_file)

    def readers(self) -> str:
        """The reader's token; empty without one."""
        return token_of(self.reader_token, self.reader_token_file)

    def check(self) -> None:
        """Refuse what must not start: see `check_exposure`."""
        check_exposure(self.listen_host, self.tls() is not None, bool(self.token()), self.insecure)
