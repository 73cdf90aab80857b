"""`holdfast nodes`: all nodes with state and job."""

from rich.table import Table

from holdfast.cli.common import output
from holdfast.cli.common.client import Client
from holdfast.cli.common.options import Json, with_client


@with_client
def nodes(client: Client, as_json: Json = False) -> int:
    """List the nodes."""
    found = client.nodes()
    if as_json:
        output.print_json(found)
    else:
        output.out().print(node_table(found))
    return 0


def node_table(found: list[output.Json]) -> Table:
    table = output.table("NODE", "STATE", "SWITCH", ">SLOTS", "JOB", "RANKS", ">FRAME AGE", ">OUT/S", ">IN/S", "WHY")
    for node in found:
        table.add_row(
            output.text(node["name"]),
            output.state(node["state"]),
            output.text(node.get("switch")),
            str(node.get("slots", "-")),
            output.text(node.get("job")),
            output.spans(node.get("ranks") or []),
            output.seconds(node.get("frame_age")),
            output.size(node.get("tx_bytes_per_s")),
            output.size(node.get("rx_bytes_per_s")),
            output.text(node.get("reason")),
        )
    return table
