"""The sections `client` and `demo`."""

from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.address import parse_address
from holdfast.base.config.parts import check_port, check_positive, check_range, token_of
from holdfast.base.errors import UsageError


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
        return token_of(self.api_token, self.api_token_file)

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
            check_positive(name, getattr(self, name))
        check_range("steps", self.steps, 1, 10_000_000)
        for name in ("pp", "dp", "tp", "spares", "min_nodes"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be negative, but is {getattr(self, name)}")
        if self.min_nodes > self.nodes:
            raise UsageError(f"min_nodes must not be above nodes, {self.nodes}, but is {self.min_nodes}")
        check_port("http_port", self.http_port)
