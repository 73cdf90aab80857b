"""`holdfast agent`: the daemon of one node."""

from holdfast.cli import daemons
from holdfast.cli.options import configured
from holdfast.config import AgentConfig


@configured(AgentConfig)
def agent(config: AgentConfig) -> int:
    """Run this node's agent: it watches the node and starts workers for the controller."""
    return daemons.run_agent(config)
