"""A loss that becomes and stays NaN is found in any print format; lookalikes are ignored."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.logs.rules import load, parse
from holdfast.agent.logs.streaks import Streaks
from holdfast.agent.logs.worker_logs import WorkerLogs
from holdfast.base.errors import UsageError
from holdfast.wire.types import LogMatched

RULES = load()


def found(text: str, streaks: Streaks[int] | None = None, key: int = 0) -> list[tuple[str, str]]:
    """(rule, line) of all that counts in a worker's output."""
    streaks = streaks or Streaks(RULES.all)
    return [(rule.name, line) for line, rule in streaks.look(key, text, list(RULES.scan(text)))]


def lines(template: str, values: list[str]) -> str:
    return "\n".join(template.replace("LOSS", value) for value in values)


PRINTED = {
    "plain": "step 12 loss LOSS",
    "with a colon": "[rank0]: epoch 1 | Loss: LOSS | lr 3.0e-04",
    "equals": "12/100 loss=LOSS acc=0.31",
    "a tensor": "loss: tensor(LOSS, device='cuda:0', grad_fn=<NllLossBackward0>)",
    "json": '{"step": 12, "loss": LOSS, "lr": 0.001}',
    "json with texts": '{"step": "12", "loss": "LOSS"}',
    "nanoGPT": "iter 10: loss LOSS, time 123.45ms, mfu 31.20%",
    "train and validation": "step 250: train loss LOSS, val loss 4.2",
    "Megatron": " iteration       12/     100 | consumed samples:  192 | lm loss: LOSS | loss scale: 1.0 |",
    "torchvision": "Epoch: [0]  [ 10/625]  eta: 0:10:00  lr: 0.1  loss: LOSS (LOSS)  acc1: 0.0 (0.2)",
    "Trainer": "{'loss': LOSS, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 0.1}",
    "Lightning's bar": "\rEpoch 0:  10%|#         | 10/100 [00:01<00:10,  9.9it/s, v_num=0, train_loss_step=LOSS]",
    "logging": "2026-01-01 12:00:00 INFO trainer: train/loss = LOSS",
    "words": "the loss is LOSS at step 12",
}
NAN = {"Lightning's bar": "nan.0", "Megatron": "NAN", "json": "NaN"}


@pytest.mark.parametrize("how", PRINTED)
def test_a_loss_that_turns_to_nan_is_found_at_its_third_line(how: str) -> None:
    nan = NAN.get(how, "nan")
    text = lines(PRINTED[how], ["2.31", "1.98", nan, nan, nan, nan])
    last = PRINTED[how].replace("LOSS", nan).strip("\r")
    assert found(text) == [("loss-nan", last)] * 2
    streaks: Streaks[int] = Streaks(RULES.all)
    reported = [found(line + "\n", streaks) for line in text.split("\n")]
    assert [len(one) for one in reported] == [0, 0, 0, 0, 1, 1], "the same line by line"


def test_trainer_that_filters_nan_shows_it_in_the_norm() -> None:
    """`logging_nan_inf_filter`, on by default, prints a loss of NaN as 0.0."""
    values = ["{'loss': 2.3, 'grad_norm': 1.5, 'epoch': 0.1}", *["{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.2}"] * 3]
    assert [name for name, _ in found("\n".join(values))] == ["loss-nan"]


@pytest.mark.parametrize(
    "line",
    [
        "Loss is nan, stopping training",
        "FloatingPointError: Loss became infinite or NaN at iteration=12!",
        "ValueError: The loss returned in `training_step` is nan or inf.",
        "ValueError: Detected nan and/or inf values in `layer.weight`.",
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot",
        "Monitored metric train_loss = nan is not finite. Previous best value was inf. Signaling Trainer to stop.",
    ],
)
def test_a_program_that_ends_for_a_nan_is_found_at_once(line: str) -> None:
    assert found(f"step 1 loss 2.3\n{line}\n") == [("nan-error", line)]


FINE = "step 1 loss 2.31"
HONEST = {
    "AMP skips a step": [
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
    ],
    "AMP's first steps": [
        "{'loss': 2.3, 'grad_norm': nan, 'epoch': 0.1}",
        "{'loss': 2.3, 'grad_norm': inf}",
    ],
    "a batch without labels": ["step 2 loss nan", "step 3 loss 2.2", "step 4 loss nan", "step 5 loss nan", FINE],
    "the script leaves the batch out": [
        "loss is nan, skipping this batch",
        "skipping batch 12: loss nan",
    ],
    "before the first evaluation": [
        "epoch 0 val_loss: nan acc: nan",
        "val loss nan",
        "best loss: inf",
        "eval_loss=nan",
    ],
    "a word and a file": [
        "reading /data/nan/loss-nan.bin",
        "user nan logged in",
        "banana loss",
        "loss_nan.py: loss",
    ],
    "nanoseconds": [
        "loss computed in 120 nanoseconds",
        "loss: nanoseconds 12",
        "forward 31 nan/s loss 2.2",
    ],
    "an untrained model's evaluation": [
        "eval perplexity inf",
        "Evaluation: loss=inf perplexity=inf",
        "test loss: inf",
    ],
    "clipping": [
        "grad norm nan, clipped (error_if_nonfinite=False)",
        "grad_norm: nan loss: 2.2",
    ],
    "a table": [
        "   epoch  loss  val",
        "0      1   2.3  NaN",
        "1      2   2.2  NaN",
        "| 3 | 2.1 | nan | nan |",
        "mean loss     NaN",
    ],
    "counts of NaN": [
        "number of nan iterations:   0 | loss: 2.2",
        "no nan in loss or gradients",
        "nan check: loss ok",
    ],
    "an auxiliary loss without targets": [
        "loss 2.2 aux_loss nan",
        "loss 2.2, aux loss nan",
        "loss: 2.2 box_loss: nan",
    ],
    "the best so far": [
        "best loss inf",
        "lowest loss: inf",
        "previous loss = inf",
        "min loss=inf",
    ],
    "no sentence of a loss": ["loss", "loss:", "loss: name", "loss: information", "loss: nan_to_num on", "loss nan.py"],
}


@pytest.mark.parametrize("what", HONEST)
def test_what_only_looks_like_it_is_left_alone(what: str) -> None:
    """However often, and with losses that are numbers before and after."""
    block = "\n".join([FINE, *HONEST[what] * 5, FINE, ""])
    assert found(block) == []


def test_a_rank_without_labels_never_had_a_loss() -> None:
    assert found("step 1 loss nan\n" * 50) == []
    streaks: Streaks[int] = Streaks(RULES.all)
    assert found(FINE + "\n", streaks, key=1) == []
    assert found("step 2 loss nan\n" * 50, streaks, key=2) == [], "what another rank prints is its own"
    assert len(found("step 2 loss nan\n" * 3, streaks, key=1)) == 1
    streaks.forget(1)
    assert found("step 2 loss nan\n" * 3, streaks, key=1) == []


@given(st.lists(st.sampled_from(["2.31", "nan", "no loss here"]), max_size=24), st.data())
def test_how_output_is_cut_changes_nothing(values: list[str], data: st.DataObject) -> None:
    text = [f"step {i} loss {value}\n" if value != "no loss here" else "saving\n" for i, value in enumerate(values)]
    streaks: Streaks[int] = Streaks(RULES.all)
    reported: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        end = data.draw(st.integers(at + 1, len(text)))
        reported += found("".join(text[at:end]), streaks)
        at = end
    assert reported == found("".join(text))
    losses = [value for value in values if value != "no loss here"]
    rows = [(value, len(list(group))) for value, group in itertools.groupby(losses)]
    expected = sum(max(0, count - 2) for i, (value, count) in enumerate(rows) if value == "nan" and i > 0)
    assert len(reported) == expected


def test_a_followed_worker_is_reported_once(tmp_path: Path) -> None:
    reported: list[LogMatched] = []
    logs = WorkerLogs(tmp_path, rules=RULES, on_match=lambda event, rule: reported.append(event))
    out, _ = logs.paths("j", 1, 0)
    for line in ("loss 2.3\n", "loss nan\n", "loss nan\n"):
        with out.open("a") as file:
            file.write(line)
        logs.poll()
    assert reported == []
    with out.open("a") as file:
        file.write("loss nan\n" * 20)
    logs.poll()
    assert [(event.rule, event.rank) for event in reported] == [("loss-nan", 0)]
    logs.drain("j", 1, 0)
    logs.close()


ROW = """[[rule]]
name = "slow"
kind = "host"
severity = "warning"
pattern = 'slow'
sample = "slow"
lines = 2
well = 'quick'
well_needles = ["quick"]
"""


def test_a_users_rule_may_ask_for_several_lines() -> None:
    (rule,) = parse(ROW, "r.toml")
    streaks: Streaks[int] = Streaks([rule])
    given = [("slow", rule)] * 3
    assert [line for line, _ in streaks.look(0, "quick\nslow\nslow\nslow", given)] == ["slow", "slow"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lines = 2", "lines = 0", "r.toml: rule 1 (slow): lines: must be a number from 1 to 1000, not 0"),
        ("lines = 2", "lines = true", "r.toml: rule 1 (slow): lines: must be a number from 1 to 1000, not True"),
        ("well = 'quick'\n", "", "r.toml: rule 1 (slow): lines: more than one line needs well and well_needles, too"),
        ('["quick"]', '"quick"', "r.toml: rule 1 (slow): well_needles: must be a list of non-empty strings"),
        (
            "lines = 2",
            "lines = 2\nwhere = 'host'",
            "r.toml: rule 1 (slow): lines: the kernel's log is read by line",
        ),
    ],
)
def test_what_is_wrong_with_such_a_rule_is_said(old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(ROW.replace(old, new), "r.toml")
    assert str(error.value) == message
