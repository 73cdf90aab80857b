"""`holdfast evict`: remove a node at once, and replace it with a spare if there is one."""

from holdfast.cli.common.client import Client
from holdfast.cli.common.options import Json, with_client
from holdfast.cli.node.cordon import Node, done


@with_client
def evict(client: Client, node: Node, as_json: Json = False) -> int:
    """Remove a node from its job at once: the job continues without it. `uncordon` admits it again."""
    client.evict(node)
    return done(node, "evicted", as_json)
