"""The section `agent`."""

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.address import check_target, parse_address
from holdfast.base.config.parts import Tls, check_positive, check_range, default_state_dir, tls_files
from holdfast.base.errors import UsageError
from holdfast.base.settings import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    controller: str = "127.0.0.1:7070"
    """Where the controller listens for agents, HOST:PORT. Anything but loopback needs TLS."""
    node_name: str = field(default_factory=socket.gethostname)
    """This node's name, unique in the cluster (default: the host's name)."""
    switch: str = ""
    """The switch (ToR) of this node: nodes that share it fail together. pod3/leaf7: of a pod of switches.
    With rails, a switch for each GPU in their order, with commas between: pod3/leaf0,pod3/leaf1."""
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
        check_positive("sample_interval", self.sample_interval)
        check_range("sample_interval", self.sample_interval, 1e-4, 1.0)
        check_range("buffer_frames", self.buffer_frames, 1, 10_000_000)
        check_range("slots", self.slots, 0, 4096)
        if not re.fullmatch("[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}", self.node_name):
            raise UsageError(
                f"node_name may have letters, digits, '-', '_' and '.', up to 253, with neither '-' nor '.' first, "
                f"not {self.node_name!r}"
            )
        if len(self.switch) > 253:
            raise UsageError(f"switch may have up to 253 characters, but has {len(self.switch)}")
        _check_switches(split_switch(self.switch))

    def tls(self) -> Tls | None:
        return tls_files(self.tls_ca, self.tls_cert, self.tls_key)

    def address(self) -> tuple[str, int]:
        return parse_address(self.controller, 7070)

    def check(self) -> None:
        """Refuse what must not start: see `check_target`."""
        check_target(self.address()[0], self.tls() is not None, self.insecure)


def split_switch(switch: str) -> tuple[str, ...]:
    """The switches that a node names, with commas between."""
    return tuple(name.strip() for name in switch.split(","))


def _check_switches(names: Sequence[str]) -> None:
    if len(names) > 1 and not all(names):
        raise UsageError(f"switch has no name at place {names.index('') + 1} of {len(names)}: name one for each GPU")
    pods = sorted({name.rpartition("/")[0] for name in names})
    if len(pods) > 1:
        raise UsageError(f"switch names switches of the pods {' and '.join(pods[:2])}: a node is in one pod")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"switch names {twice} twice: with rails each GPU has its own; name it once if all share it")
