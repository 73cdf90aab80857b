"""`holdfast logs`: what workers printed, of a rank, a node or the whole job, also in earlier generations."""

import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from holdfast.base.errors import UsageError
from holdfast.base.plain import coloured
from holdfast.base.settings import nearest, parse_seconds, parse_whole
from holdfast.cli.common import output
from holdfast.cli.common.client import OVER, Client
from holdfast.cli.common.jobs import ShownJob, shown_job
from holdfast.cli.common.options import Json, with_client
from holdfast.cli.job.follow import Follower, split
from holdfast.wire.rank_sets import compact

LEVELS = ("debug", "info", "warning", "error")


@with_client
def logs(
    client: Client,
    target: Annotated[
        str, typer.Argument(metavar="[RANK|NODE]", help="A rank, as 3 or rank3, or a node. Default: the whole job.")
    ] = "",
    since: Annotated[str, typer.Option(metavar="TIME", help="Only lines of the last 90s, 30m or 2h.")] = "",
    grep: Annotated[
        str, typer.Option(metavar="REGEX", help="Only lines with a match of this regular expression.")
    ] = "",
    level: Annotated[
        str, typer.Option(metavar="LEVEL", help="Only lines of this level or a worse one: info, warning or error.")
    ] = "",
    same: Annotated[
        str, typer.Option(metavar="LINE", help="Instead: which ranks said this line, whatever its numbers.")
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until the job ends.")] = False,
    generation: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Only this generation; -1: the one before the newest. Default: all that are kept."
        ),
    ] = None,
    times: Annotated[
        bool, typer.Option("--times", "-t", help="The time before each line, as the controller received it.")
    ] = False,
    job: ShownJob = "",
    as_json: Json = False,
) -> int:
    """Show what workers printed: of a rank, of all ranks of a node, or of the whole job.

    The controller keeps the newest lines of the last nine generations; all of them are on the nodes, in files.
    """
    matches = _pattern(grep)
    params: dict[str, object] = {}
    if level:
        params["level"] = _level(level)
    if since:
        params["seconds"] = _seconds(since)
    found = shown_job(client, job)
    params |= _of_target(client, found, target)
    if generation is not None:
        params["generation"] = _generation(generation, found)
    if same:
        return _said_by(client.said_by(str(found["id"]), same, params.get("generation")), as_json)
    count = 0
    shown_generation: int | None = None
    for line in _lines(client, found, params, follow):
        if not matches.search(line["text"]):
            continue
        count += 1
        if as_json:
            output.print_json(line)
            continue
        if shown_generation not in (None, line["generation"]):
            output.note(f"generation {line['generation']}")
        shown_generation = line["generation"]
        if line.get("dropped"):
            output.note(f"rank {line['rank']}: {line['dropped']} lines left out")
        print(_text(line, times), flush=follow)
    if not count:
        output.note(f"no such lines are kept; {_where(found, params)}")
    return 0


def _lines(client: Client, found: output.Json, params: dict[str, object], follow: bool) -> Iterator[output.Json]:
    id = str(found["id"])
    if not follow or found["state"] in OVER:
        for name, chunk in client.log_events(id, **params, follow=False):
            if name == "line":
                yield from split(chunk)
        return
    follower = Follower(client, id, params)
    follower.start()
    yield from _until_none(follower)
    if follower.error is not None:
        raise follower.error


def _until_none(follower: Follower) -> Iterable[output.Json]:
    while (line := follower.lines.get()) is not None:
        if not line.get("unfinished"):  # it comes again when it ends
            yield line


def _text(line: output.Json, times: bool) -> str:
    text = coloured(line["text"]) if sys.stdout.isatty() else line["text"]
    at = time.strftime("%H:%M:%S ", time.localtime(line["at"])) if times else ""
    return f"{at}[{line['rank']}] {text}"


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--grep {text!r} is no regular expression: {error}") from None


def _level(text: str) -> str:
    if text.lower() not in LEVELS:
        raise UsageError(f"--level must be {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, not {text!r}")
    return text.lower()


def _said_by(found: output.Json, as_json: bool) -> int:
    if as_json:
        output.print_json(found)
        return 0
    first = found["first"]
    if first is None:
        output.note("no rank said that, in the lines that are kept")
        return 0
    ranks = compact(found["ranks"])
    print(f"{len(found['ranks']):,} ranks said it, {found['lines']:,} times: {ranks}")
    print(
        f"the first was rank {first['rank']} on {output.shown(first['node'])} at {output.clock(first['at'])}, "
        f"in generation {first['generation']}"
    )
    return 0


def _seconds(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError:
        raise UsageError(f"--since must be a time such as 90s, 30m or 2h, not {text!r}") from None


def _of_target(client: Client, job: output.Json, target: str) -> dict[str, object]:
    """The question for a rank or a node. A node of that name comes before a rank."""
    if not target:
        return {}
    nodes = [str(node["name"]) for node in client.nodes()]
    if target in nodes:
        return {"node": target}
    rank = parse_whole(target.removeprefix("rank"))
    if rank is None:
        raise UsageError(f"neither a rank nor a node: {target!r}{nearest(target, nodes)}")
    if rank >= job["world_size"]:
        raise UsageError(f"job {job['name']} has ranks 0 to {job['world_size'] - 1}, but no rank {rank}")
    return {"ranks": str(rank)}


def _generation(wanted: int, job: output.Json) -> int:
    newest = int(job["generation"])
    found = newest + wanted if wanted < 0 else wanted
    if not 0 <= found <= newest:
        raise UsageError(f"job {job['name']} is in generation {newest}: there is no generation {wanted}")
    return found


def _where(job: output.Json, params: dict[str, object]) -> str:
    """The files that have all lines."""
    generation = params.get("generation", job["generation"])
    rank = params.get("ranks", "R")
    return f"all lines are on the node, in state_dir/logs/{job['id']}/g{generation}/rank{rank}.out and .err"
