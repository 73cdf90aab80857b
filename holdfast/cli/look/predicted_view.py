"""A step beside its prediction, as text: the numbers, and which ranks were late."""

from holdfast.cli.common import output

_ROWS = 64


def show(found: output.Json) -> None:
    """Print `diagnostics.timeline.beside.beside`."""
    console = output.out()
    times = "its own times" if found["times_of"] == found["step"] else f"the times of step {found['times_of']}"
    order = ", in the order that ranks took" if found["own_order"] else ""
    name = output.text(found["name"] or found["job"])
    schedule = output.text(found["schedule"])
    console.print(f"step {found['step']} of {name}, {schedule}, predicted with {times}{order}", soft_wrap=True)
    table = output.table("", ">MEASURED", ">PREDICTED", ">DIFFERENCE")
    measured, predicted = found["measured_s"], found["predicted_s"]
    table.add_row("pipeline", _ms(measured), _ms(predicted), _signed(measured - predicted))
    bubbles = found["measured_bubble"], found["predicted_bubble"]
    points = f"{(bubbles[0] - bubbles[1]) * 100:+.1f} points"
    table.add_row("bubble", *(f"{bubble:.1%}" for bubble in bubbles), points)
    console.print(table)
    console.print(output.text(found["text"]), soft_wrap=True)
    ranks = output.table("RANK", ">LATEST", "WHICH", ">OWN DELAY", "WHICH")
    worst = sorted(found["ranks"], key=lambda row: (row["own_s"] is None, -(row["own_s"] or 0.0)))
    for row in worst[:_ROWS]:
        late, own = _signed(row["late_s"]), _signed(row["own_s"])
        ranks.add_row(str(row["rank"]), late, output.text(row["late"]), own, output.text(row["text"]))
    console.print(ranks)
    if len(worst) > _ROWS:
        console.print(f"the worst {_ROWS} of {len(worst)} ranks; --json has all")
    if found["left_out"]:
        console.print(f"{found['left_out']} more ranks each took an order of their own and were not predicted")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _signed(seconds: float | None) -> str:
    return "-" if seconds is None else f"{round(seconds * 1e3, 1) + 0.0:+.1f} ms"
