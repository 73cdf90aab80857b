"""`holdfast inject`: inject a fault."""

from typing import Annotated

import typer

from holdfast.base.errors import UsageError
from holdfast.cli.common import completion, output
from holdfast.cli.common.client import Client
from holdfast.cli.common.jobs import JobOption, find_active
from holdfast.cli.common.options import Json, with_client
from holdfast.facts.faults import KINDS, parse_fault


@with_client
def inject(
    client: Client,
    fault: Annotated[
        str,
        typer.Argument(
            metavar="KIND[@STEP][:TARGET]", help=f"Kinds: {', '.join(KINDS)}.", autocompletion=completion.faults
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="[TARGET]",
            help="rankR, or a node by name or as nodeN, if not given above. rankR/tp: in its next operation of that "
            "axis; also rankR/before-tp, rankR/after-tp, and dp and pp.",
            autocompletion=completion.targets,
        ),
    ] = "",
    job: JobOption = "",
    as_json: Json = False,
) -> int:
    """Inject a fault: `inject kill rank3`, or `inject kill@20:rank3` for step 20."""
    if target and ":" in fault:
        raise UsageError(f"two targets: {fault!r} names one already, and {target!r} is another")
    spec = parse_fault(f"{fault}:{target}" if target else fault)
    found = find_active(client, job)
    answer = client.inject(str(spec), found["id"] if found is not None else "")
    if as_json:
        output.print_json(answer)
    else:
        output.say(f"{spec}: {'armed' if answer.get('armed') else 'done'}")
    return 0
