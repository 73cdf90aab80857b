"""`holdfast stacks`: the current stacks of all workers, merged into one call tree."""

from holdfast.cli.common import output
from holdfast.cli.common.client import Client
from holdfast.cli.common.jobs import JobOption, active_job
from holdfast.cli.common.options import Json, with_client
from holdfast.cli.common.progress import progress
from holdfast.wire.rank_sets import compact


@with_client
def stacks(client: Client, job: JobOption = "", as_json: Json = False) -> int:
    """Show the Python stacks of all workers of a running job, merged into one tree with the ranks of each call."""
    with progress("waiting for the agents"):
        found = client.stacks(active_job(client, job)["id"])
    if as_json:
        output.print_json(found)
    else:
        show_stacks(found)
    return 0


def show_stacks(found: output.Json) -> None:
    """The call tree, the kernel's state of the workers, and the workers without a reply."""
    console = output.out()
    console.print(f"stacks of generation {found['generation']} at {output.clock(found['at'])}")
    rows = found["rows"]
    width = max((len(row["ranks"]) for row in rows), default=0)
    for row in rows:
        ranks, frame = output.text(row["ranks"]), output.text(row["frame"])
        console.print(f"{ranks:>{width}}  {'  ' * row['depth']}{frame}", soft_wrap=True, highlight=False)
    same: dict[str, list[int]] = {}
    for rank, state in found["states"].items():
        same.setdefault(state, []).append(int(rank))
    for state, at in same.items():
        console.print(f"process of {compact(at)}: {output.text(state)}", highlight=False)
    for node, why in found["missing"].items():
        console.print(f"{output.text(node)} did not report: {output.text(why)}", highlight=False)
