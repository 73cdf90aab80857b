"""What a person sees first: in three sizes of a terminal, from documents as the controller gives them."""

import io

import pytest
from rich.console import Console

from holdfast.cli.job.job import step_text
from holdfast.cli.look.glance import overview
from tests.holdfast.support.fake_controller import INCIDENT, Json, health_as, job_as

SIZES = [(80, 24), (80, 50), (200, 50)]
RISK = {"worker": 1.0, "node": 2.0, "job": 10.0}
LONG = "rank 3 on node1 was killed by signal 9 (SIGKILL), as the kernel does when the memory of the host is used up"


def status_as(job: Json | None, incidents: list[Json], nodes: dict[str, str], **more: object) -> Json:
    states = list(nodes.values())
    base: Json = {
        "version": 1, "now": 100.0, "started_at": 0.0, "job": job, "jobs": [job] if job else [], "nodes": nodes,
        "counts": {state: states.count(state) for state in dict.fromkeys(states)}, "incidents": incidents,
        "open_incidents": sum(one["state"] in ("open", "recovering") for one in incidents),
    }  # fmt: skip
    return base | more


LIVE = INCIDENT | {
    "id": "i77", "state": "recovering", "opened": 88.0, "summary": LONG,
    "phases": [{"name": "detecting", "start": 88.0, "end": 88.5}, {"name": "starting", "start": 97.0, "end": None}],
}  # fmt: skip
BAD = status_as(
    job_as(
        "recovering",
        at_risk=RISK,
        health=health_as(
            "recovering", f"Recovering for 12 s: {LONG}.", doing="restart: starting", usual_s=4.0,
            others=[health_as("slow", "Rank 6 makes every step 7% longer.")],
        ),
    ),
    [LIVE, *(INCIDENT | {"id": f"i{n}"} for n in range(19))],
    {f"node{n}": "lost" if n < 60 else "healthy" for n in range(1536)},
)  # fmt: skip


def drawn(found: Json, width: int, height: int | None) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), highlight=False)
    console.print(overview(found, console, height))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_it_fits_and_begins_with_health(width: int, height: int) -> None:
    lines = drawn(BAD, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert lines[0].startswith("recovering  Recovering for 12 s: rank 3 on node1")
    assert "next: Nothing to do." in text
    order = [text.index(word) for word in ("recovering", "\nincident  i77", "\njob  train", "\nnodes  ", "\nincidents")]
    assert order == sorted(order)
    words = " ".join(text.split())
    assert "i77 recovering for 12 s: worker-killed on rank3, restart, starting for 3.00 s" in words
    assert words.count(LONG) == 2  # whole: in the health and at the incident


def test_what_does_not_fit_is_counted() -> None:
    lines = drawn(BAD, 80, 24)
    assert len(lines) == 24
    shown = sum(line.count(" lost") for line in lines if line.startswith("  node"))
    assert f"  … {60 - shown} more nodes" in lines
    assert lines[-1] == "  … 19 more incidents"
    roomy = "\n".join(drawn(BAD, 200, 50))
    assert "more nodes" not in roomy
    assert "i18  worker-killed on rank3, restart, back after 1.50 s: rank 3 was killed" in roomy


def test_a_wide_terminal_needs_fewer_lines() -> None:
    assert len(drawn(BAD, 200, None)) < len(drawn(BAD, 80, None)) - 8


@pytest.mark.parametrize("height", [1, 3, 5, 9, 12])
def test_even_a_low_terminal_holds_the_worst(height: int) -> None:
    lines = drawn(BAD, 80, height)
    assert len(lines) <= height
    if height > 1:
        assert lines[0].startswith("recovering  ")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_calm_job_has_room_to_spare(width: int, height: int) -> None:
    job = job_as("running", at_risk=RISK, health=health_as("well", "Training normally, at step 7 of 10."))
    lines = drawn(status_as(job, [], {"node0": "healthy", "node1": "healthy"}), width, height)
    assert lines[:2] == ["well  Training normally, at step 7 of 10.", "  next: Nothing to do."]
    assert "nodes  2 healthy" in lines
    assert len(lines) < 15
    assert not [line for line in lines if line.startswith("incident ") or "…" in line]


def test_a_step_of_this_life_is_not_shown_as_one_of_the_job() -> None:
    lines = "\n".join(drawn(status_as(job_as("running", step=60, step_of_life=12), [], {}), 200, None))
    assert "step 12 of this life" in lines
    assert "60" not in lines
    assert step_text(job_as("running", step=60, step_of_life=12)).startswith("12 of this life (61 steps in all")
    assert step_text(job_as("running", steps_counted=True)) == "7 of 10 (counted: the program numbers none)"


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_before_the_first_job(width: int, height: int) -> None:
    lines = drawn(status_as(None, [], {}), width, height)
    assert lines == ["no job yet: holdfast run script.py", "nodes  none", "incidents  0 open"]


def test_names_are_no_markup() -> None:
    job = job_as("running", name="[bold]x[/no]", health=health_as("well", "a [red]b[/red] \x1b[31m"))
    text = "\n".join(drawn(status_as(job, [INCIDENT | {"culprit": "[/x]"}], {"[n]": "lost"}), 200, None))
    for name in ("[bold]x[/no]", "a [red]b[/red] \\x1b[31m", "on [/x]", "[n] lost", "[by SIGKILL]"):
        assert name in text


def test_a_failed_job_says_what_to_do_in_red() -> None:
    health = health_as(
        "failed", "Failed: rank 1: ValueError: no [x]. No step was done.", needs_person=True,
        action="Correct the cause and start the job again; it starts at step 0.",
    )  # fmt: skip
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system="standard", highlight=False)
    console.print(overview(status_as(job_as("failed", health=health), [], {}), console, 24))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert said.startswith("\x1b[1;31mfailed\x1b[0m  Failed: rank 1: ValueError: no [x].")
    assert "next: Correct the cause and start the job again" in said
