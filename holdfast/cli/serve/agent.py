"""`holdfast agent`: the daemon of one node."""

from holdfast.base.config.agent import AgentConfig
from holdfast.cli.common.options import configured
from holdfast.cli.serve import daemons


@configured(AgentConfig)
def agent(config: AgentConfig) -> int:
    """Run this node's agent: it monitors the node and starts workers for the controller."""
    return daemons.run_agent(config)
