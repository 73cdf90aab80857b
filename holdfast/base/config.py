"""The settings of each part of Holdfast. One file, `holdfast.toml`, has a section for each of these classes.

Every field is also `HOLDFAST_SECTION_FIELD` and a flag; the text under it is the help of that flag.
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from holdfast.base.address import check_exposure, check_target, parse_address
from holdfast.base.errors import UsageError
from holdfast.base.files import expand, read_text
from holdfast.base.settings import Assignments, Seconds, nearest
from holdfast.base.settings import load as load_section

T = TypeVar("T")


_TERABYTE_MB = 1 << 20
SEVERITIES = ("info", "warning", "critical")
SCHEDULERS = ("none", "slurm", "kubernetes")


def default_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        return expand(base) / "holdfast"
    except ValueError:
        raise UsageError("this user has no home folder: name a --state-dir, or set XDG_STATE_HOME") from None


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the trusted authority, the own certificate, and its key."""

    ca: Path
    cert: Path
    key: Path


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
    stuck_limit: Seconds = 10.0
    """Time without activity of any rank in an operation that all have entered. Links that flap need some seconds."""
    pause_limit: Seconds = 1800.0
    """Longest pause of a job whose blocking worker is busy (computes, reads, writes, moves bytes)."""
    idle_limit: Seconds = 60.0
    """Longest pause of a job whose blocking worker is idle. Doubles where a restart led to the same pause."""
    idle_limit_start: Seconds = 300.0
    """Longest idle pause before the first step of a worker, or in a phase without steps."""
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
        _check_port("grpc_port", self.grpc_port)
        _check_port("http_port", self.http_port)
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
            "pause_alert",
            "spare_grace",
            "grow_after",
            "start_timeout",
            "stop_timeout",
            "notify_resend",
            "notify_remind",
        )
        for name in (*positive, "restart_attempts", "restart_attempts_fault", "node_failures", "max_evictions"):
            _check_positive(name, getattr(self, name))
        for name in (
            "silence_beats",
            "hang_steps",
            "restart_attempts",
            "restart_attempts_fault",
            "node_failures",
            "max_evictions",
        ):
            _check_range(name, getattr(self, name), 0, 1_000_000)
        _check_range("restart_backoff", self.restart_backoff, 0.0, 86400.0)
        _check_range("heartbeat_interval", self.heartbeat_interval, 0.001, 3600.0)
        _check_range("sample_memory_mb", self.sample_memory_mb, 1, _TERABYTE_MB)
        _check_range("span_memory_mb", self.span_memory_mb, 1, _TERABYTE_MB)
        _check_range("span_store_mb", self.span_store_mb, 0, 512 * _TERABYTE_MB)
        _check_positive("span_store_age", self.span_store_age)
        _check_positive("retention_age", self.retention_age)
        _check_range("retention_incidents", self.retention_incidents, 1, 1_000_000)
        _check_range("retention_jobs", self.retention_jobs, 1, 1_000_000)
        if self.notify_digest:
            _check_range("notify_digest", self.notify_digest, 1.0, 30 * 86400.0)
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
        return _tls(self.tls_ca, self.tls_cert, self.tls_key)

    def token(self) -> str:
        return _token(self.api_token, self.api_token_file)

    def readers(self) -> str:
        """The reader's token; empty without one."""
        return _token(self.reader_token, self.reader_token_file)

    def check(self) -> None:
        """Refuse what must not start: see `check_exposure`."""
        check_exposure(self.listen_host, self.tls() is not None, bool(self.token()), self.insecure)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    controller: str = "127.0.0.1:7070"
    """Where the controller listens for agents, HOST:PORT. Anything but loopback needs TLS."""
    node_name: str = field(default_factory=socket.gethostname)
    """This node's name, unique in the cluster (default: the host's name)."""
    switch: str = ""
    """The switch (ToR) of this node: nodes that share it fail together."""
    slots: int = 0
    """Workers that fit here; 0 means one per GPU, or one per core where there is no GPU."""
    state_dir: Path = field(default_factory=default_state_dir)
    """Folder for state that survives a restart of the agent (~/.local/state/holdfast)."""
    sysfs_root: Path = Path("/sys")
    """Where sysfs is mounted; network and RDMA counters are read under it."""
    sample_interval: Seconds = 0.001
    """Time between two samples of the traffic counters. Shorter shows finer bursts and costs more CPU."""
    nics: tuple[str, ...] = ("auto",)
    """Devices to sample, or auto: all RDMA devices that count bytes, and Ethernet where none of them is active."""
    log_rules: Path | None = None
    """TOML file with more rules for lines in the logs of workers and kernel."""
    preload: tuple[str, ...] = ("torch", "holdfast.trainer.preload")
    """Modules that the fork server imports, so that a worker starts in a fraction of a second. A module that
    initializes GPUs on import is skipped: a forked process could not use them."""
    warm: bool = True
    """Keep a fork server to fork workers from."""
    tls_ca: Path | None = None
    """Certificate authority (PEM) that the controller's certificate must come from."""
    tls_cert: Path | None = None
    """This node's certificate (PEM)."""
    tls_key: Path | None = None
    """The key of that certificate (PEM)."""
    insecure: bool = False
    """Allow a controller beyond loopback without TLS."""
    buffer_frames: int = 3000
    """Frames kept while the controller does not respond; the oldest are dropped first."""
    end_with_workers: bool = False
    """On SIGTERM, stop the workers too. Without it they train on, and the next agent adopts them."""
    drain: Seconds = 0.0
    """With end_with_workers: time for workers to save their state and exit before they are killed. Keep it below the
    grace period that Slurm or Kubernetes gives the agent."""

    def __post_init__(self) -> None:
        if self.drain < 0:
            raise UsageError(f"drain must not be negative, but is {self.drain:g}")
        _check_positive("sample_interval", self.sample_interval)
        _check_range("sample_interval", self.sample_interval, 1e-4, 1.0)
        _check_range("buffer_frames", self.buffer_frames, 1, 10_000_000)
        _check_range("slots", self.slots, 0, 4096)
        if not re.fullmatch("[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}", self.node_name):
            raise UsageError(
                f"node_name may have letters, digits, '-', '_' and '.', up to 253, with neither '-' nor '.' first, "
                f"not {self.node_name!r}"
            )
        if len(self.switch) > 253:
            raise UsageError(f"switch may have up to 253 characters, but has {len(self.switch)}")

    def tls(self) -> Tls | None:
        return _tls(self.tls_ca, self.tls_cert, self.tls_key)

    def address(self) -> tuple[str, int]:
        return parse_address(self.controller, 7070)

    def check(self) -> None:
        """Refuse what must not start: see `check_target`."""
        check_target(self.address()[0], self.tls() is not None, self.insecure)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    controller: str = field(default="", metadata={"env": "HOLDFAST_CONTROLLER"})
    """The controller's HTTP address, HOST:PORT (127.0.0.1:7080); also HOLDFAST_CONTROLLER."""
    api_token: str = field(default="", repr=False, metadata={"env": "HOLDFAST_API_TOKEN"})
    """API token; also HOLDFAST_API_TOKEN."""
    api_token_file: Path | None = None
    """File with the API token."""
    tls_ca: Path | None = None
    """Certificate authority (PEM) of the controller; its presence means HTTPS."""
    insecure: bool = False
    """Allow the API token over plain HTTP beyond loopback, where others can read it."""

    def address(self) -> tuple[str, int]:
        return parse_address(self.controller.removeprefix("https://").removeprefix("http://").rstrip("/"), 7080)

    def token(self) -> str:
        return _token(self.api_token, self.api_token_file)

    def uses_tls(self) -> bool:
        return self.tls_ca is not None or self.controller.startswith("https://")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    nodes: int = 2
    """Agents to start."""
    nproc: int = 4
    """Workers per agent."""
    spares: int = 0
    """Spare agents: a spare replaces a lost node, which then stays down."""
    min_nodes: int = 0
    """Least number of nodes to continue with after a node loss without a spare; 0: wait for the node."""
    steps: int = 60
    """Training steps."""
    pp: int = 0
    """Pipeline stages; 0 lets the demo choose (pp 2, dp 2, tp 2 for eight workers)."""
    dp: int = 0
    """Data-parallel replicas; 0 lets the demo choose."""
    tp: int = 0
    """Tensor-parallel slices; 0 lets the demo choose."""
    http_port: int = 0
    """Port of the page; 0 picks a free one."""
    state_dir: Path | None = None
    """Folder for state, logs and checkpoints (default: a temporary one, removed at the end)."""

    def __post_init__(self) -> None:
        for name in ("nodes", "nproc", "steps"):
            _check_positive(name, getattr(self, name))
        _check_range("steps", self.steps, 1, 10_000_000)
        for name in ("pp", "dp", "tp", "spares", "min_nodes"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be negative, but is {getattr(self, name)}")
        if self.min_nodes > self.nodes:
            raise UsageError(f"min_nodes must not be above nodes, {self.nodes}, but is {self.min_nodes}")
        _check_port("http_port", self.http_port)


SECTIONS: Mapping[str, type[Any]] = {
    "controller": ControllerConfig,
    "agent": AgentConfig,
    "client": ClientConfig,
    "demo": DemoConfig,
}


def find_file(env: Mapping[str, str]) -> Path | None:
    """The file to read without --config: HOLDFAST_CONFIG (empty: none), the current folder, /etc."""
    if "HOLDFAST_CONFIG" in env:
        try:
            return expand(env["HOLDFAST_CONFIG"]) if env["HOLDFAST_CONFIG"] else None
        except ValueError as error:
            raise UsageError(f"HOLDFAST_CONFIG: {error}") from None
    places = (Path("holdfast.toml"), Path("/etc/holdfast/holdfast.toml"))
    return next((place for place in places if place.is_file()), None)


def load(
    cls: type[T],
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> T:
    """A section's settings, e.g. `load(AgentConfig, {"slots": "4"})`. UsageError names what is wrong and where."""
    env = os.environ if env is None else env
    file = find_file(env) if file is None else file
    return load_section(cls, flags=flags or {}, env=env, file=file, sections=SECTIONS)


def _tls(ca: Path | None, cert: Path | None, key: Path | None) -> Tls | None:
    if ca is None and cert is None and key is None:
        return None
    if ca is None or cert is None or key is None:
        missing = [n for n, v in (("tls_ca", ca), ("tls_cert", cert), ("tls_key", key)) if v is None]
        raise UsageError(f"TLS needs tls_ca, tls_cert and tls_key together; missing: {', '.join(missing)}")
    for path in (ca, cert, key):
        if not os.access(path, os.R_OK):
            raise UsageError(f"{path}: no such file, or not readable")
    return Tls(ca, cert, key)


def _token(token: str, file: Path | None) -> str:
    if token or file is None:
        return _header(token, "--api-token") if token else ""
    content = read_text(file, "a file that holds the API token", most=1 << 16).strip()
    if not content:
        raise UsageError(f"{file}: holds no API token")
    return _header(content, str(file))


def _header(token: str, where: str) -> str:
    """What a header of HTTP can carry: nothing else can ever be a token."""
    if not re.fullmatch("[!-~]{1,4096}", token):
        raise UsageError(f"{where}: an API token is 1 to 4096 printable ASCII characters, without blanks")
    return token


def _check_port(name: str, port: int) -> None:
    if not 0 <= port <= 65535:
        raise UsageError(f"{name} must be from 0 to 65535, but is {port}")


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise UsageError(f"{name} must be from {least:g} to {most:g}, but is {value:g}")


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise UsageError(f"{name} must be above 0, but is {value:g}")
