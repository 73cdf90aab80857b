"""`holdfast evict`: a node out at once, and a spare in its place if there is one."""

from holdfast.cli.common import output
from holdfast.cli.common.client import Client
from holdfast.cli.common.options import with_client
from holdfast.cli.node.cordon import Node


@with_client
def evict(client: Client, node: Node) -> int:
    """Take a node out at once: a job that runs there goes on without it. `uncordon` lets it in again."""
    client.evict(node)
    output.say(f"{node}: evicted")
    return 0
