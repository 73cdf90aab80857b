"""Printed losses are read in any format, each series by itself; what is no training loss is passed over."""

from pathlib import Path

import pytest

from holdfast.agent.logs.printed_losses import PrintedLosses, loss_of
from holdfast.agent.logs.rules import load
from holdfast.agent.logs.worker_logs import WorkerLogs
from holdfast.wire.types import LogMatched, Severity
from tests.agent.logs.test_streaks import PRINTED

KEY = ("j", 1, 0)


def reported(text: str) -> list[LogMatched]:
    found: list[LogMatched] = []
    losses = PrintedLosses(found.append, lambda: 7)
    losses.look(KEY, text)
    return found


@pytest.mark.parametrize("how", PRINTED)
@pytest.mark.parametrize(("text", "value"), [("2.31", 2.31), ("-12", -12.0), ("1.5e+04", 15000.0), (".5", 0.5)])
def test_a_printed_loss_is_read(how: str, text: str, value: float) -> None:
    found = loss_of(PRINTED[how].replace("LOSS", text))
    assert found is not None
    assert found[1] == value
    step = 10 if how == "nanoGPT" else 250 if how.startswith("train and") else 12
    assert found[2] in (step, -1)


@pytest.mark.parametrize(
    "line",
    [
        "step 3 loss nan",
        "lossless 3.0",
        "loss scale: 65536.0",
        "loss_scale=65536",
        "val loss 900.0",
        "validation: epoch 3 loss 900.0",
        "eval/loss = 900",
        "step 3 | aux loss 900",
        "best loss: 2.0",
        "scaled loss 150000.0",
        "loss_G: 900.0 loss_D: 2.0",
        "box_loss: 900",
        "loss 12% done",
        "loss: 3/10",
        "loss 12s",
        "packet loss 2026-11-28",
        "loss: 12,345.6",
        "loss.py 12",
        "-loss 12",
    ],
)
def test_what_is_no_training_loss_is_passed_over(line: str) -> None:
    assert loss_of(line) is None


def test_of_two_losses_of_a_line_the_first_counts() -> None:
    assert loss_of("step 250: train loss 2.0, val loss 900.0") == ("train loss", 2.0, 250)


def test_each_series_is_its_own() -> None:
    lines = [
        f"step {step} lm loss: 2.{step % 10} total_loss: 900.{step % 10}\nloss 40.{step % 10}" for step in range(60)
    ]
    assert reported("\n".join(lines)) == []


def test_a_leap_is_reported_with_its_line() -> None:
    lines = [f"step {step} loss {2.3 if step != 40 else 23456.0}" for step in range(60)]
    (event,) = reported("\n".join(lines))
    assert (event.rule, event.kind, event.severity, event.rank) == ("loss-leap", "numeric", Severity.WARNING, 0)
    assert event.line == (
        "the loss leapt to 2.346e+04 at step 40; the median before was 2.3; it printed: step 40 loss 23456.0"
    )


def test_losses_that_stay_high_are_a_divergence() -> None:
    lines = [f"loss {2.3 if step == 0 else 9000 + step % 7}" for step in range(60)]
    (event,) = reported("\r".join(lines))
    assert event.rule == "loss-divergence"
    assert event.line.startswith(
        "training diverges since loss 2 of this run: the loss is 9003; it was 2.3; it printed: "
    )


def test_an_epoch_may_number_its_steps_from_0_again() -> None:
    lines = [f"epoch {n // 30} step {n % 30} loss {2.3 if n != 100 else 1e5}" for n in range(120)]
    assert [event.rule for event in reported("\n".join(lines))] == ["loss-leap"]


def test_a_followed_worker_is_reported_once(tmp_path: Path) -> None:
    found: list[LogMatched] = []
    logs = WorkerLogs(tmp_path, rules=load(), on_match=lambda event, rule: found.append(event))
    out, _ = logs.paths(*KEY)
    for number in range(60):
        with out.open("a") as file:
            file.write(f"step {number} loss {2.3 if number < 50 else 1e4}\n")
        logs.poll()
    assert [(event.rule, event.rank) for event in found] == [("loss-leap", 0)]
    logs.drain(*KEY)
    logs.close()
