"""`holdfast status --at TIME`: the job as it was at a time of its past."""

from datetime import datetime, timedelta

from rich.console import Console, Group
from rich.text import Text

from holdfast.base.errors import UsageError
from holdfast.base.settings import parse_seconds
from holdfast.cli.common import output
from holdfast.cli.common.client import Client
from holdfast.cli.common.fit import lines_of, single
from holdfast.cli.look.glance import health_lines

_CLOCKS = ("%H:%M", "%H:%M:%S")
_DATES = ("%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")
_MOST = 20


def time_of(text: str, now: datetime) -> datetime:
    """The time that "02:10", "2026-11-25 02:10" or "3h" (before now) names; a clock time is the last one before `now`.

    UsageError where it names none, or one that is yet to come.
    """
    found = _read(text.strip(), now)
    if found is None:
        raise UsageError(f'--at must be a time such as 02:10, "2026-11-25 02:10", or 3h ago as 3h, not {text!r}')
    if found > now:
        raise UsageError(f"--at {text!r} is yet to come: it is {now:%Y-%m-%d %H:%M:%S} now")
    return found


def _read(text: str, now: datetime) -> datetime | None:
    for form in (*_CLOCKS, *_DATES):
        try:
            found = datetime.strptime(text, form)
        except ValueError:
            continue
        if form in _DATES:
            return found.replace(tzinfo=now.tzinfo)
        today = now.replace(hour=found.hour, minute=found.minute, second=found.second, microsecond=0)
        return today if today <= now else today - timedelta(days=1)
    try:
        return now - timedelta(seconds=parse_seconds(text.removesuffix("ago").strip()))
    except (ValueError, OverflowError):
        return None


def show(client: Client, text: str, as_json: bool) -> int:
    found = client.then(time_of(text, datetime.now().astimezone()).timestamp())
    if as_json:
        output.print_json(found)
        return 0
    console = output.out()
    console.print(picture(found, console))
    return 0


def picture(found: output.Json, console: Console) -> Group:
    """`found`: `past.days.Then`."""
    of = f" of {found['max_steps']:,}" if found["max_steps"] else ""
    step = "no step yet" if found["step"] < 0 else f"step {found['step']:,}{of}"
    lines = [
        single(f"[dim]at {output.clock(found['at'])} (kept at {output.clock(found['kept_at'])})[/]"),
        *health_lines(console, found["health"]),
        *(
            single(f"  also {output.text(o['condition'])}: {output.text(o['sentence'])}")
            for o in found["health"]["others"]
        ),
        Text(""),
        single(
            f"[bold]job[/]  {output.state(found['state'])}, {step}, generation {found['generation']}, "
            f"{found['world_size']:,} ranks on {found['nnodes']:,} nodes, {found['spares']:,} spares"
        ),
    ]
    rows = [
        f"{output.text(one['id'])} {output.text(one['kind'])}: {output.text(one['text'])}" for one in found["incidents"]
    ]
    for row in rows[:_MOST]:
        lines += lines_of(console, Text.from_markup(f"[bold]incident[/]  {row}", emoji=False))
    doubtful = list(found["doubtful"].items())
    if doubtful:
        named = ", ".join(f"{output.text(name)} {output.text(state)}" for name, state in doubtful[:_MOST])
        more = found["doubtful_many"] - min(len(doubtful), _MOST)
        text = f"[bold]nodes[/]  {named}" + (f" and {more:,} more" if more > 0 else "")
        lines += lines_of(console, Text.from_markup(text, emoji=False))
    return Group(*lines)
