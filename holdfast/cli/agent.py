"""`holdfast agent`: the daemon of one node."""

from holdfast.cli.extras import needs
from holdfast.cli.options import configured
from holdfast.config import AgentConfig


@configured(AgentConfig)
def agent(config: AgentConfig) -> int:
    """Run this node's agent: it watches the node and starts workers for the controller."""
    config.check()
    with needs("agent"):
        from holdfast.agent.app import run
    return run(config)
