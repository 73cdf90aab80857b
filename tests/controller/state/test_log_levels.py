"""The level of each line of a log, and which lines are the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.state.log_levels import Level, LevelJudge, masked
from holdfast.controller.state.log_wanted import Budget, LevelFilter

LINES = [
    ("step 12 loss 3.1", Level.INFO),
    ("2026-11-25 02:10:01,113 - root - WARNING - slow batch", Level.WARNING),
    ("ERROR:root:cannot read /data/x", Level.ERROR),
    ("[2026-11-25 02:10:01][DEBUG] cache hit", Level.DEBUG),
    ("[rank3]:[W1125 02:10:01.123456789 ProcessGroupNCCL.cpp:1250] Warning: destroy_process_group", Level.WARNING),
    ("[rank3]:[E1125 02:10:01.123 socket.cpp:1019] connection refused", Level.ERROR),
    ("W1125 02:10:01.123000 4242 torch/distributed/run.py:792] *****", Level.WARNING),
    ("node1:4242:4300 [3] NCCL WARN Call to ibv_modify_qp failed", Level.WARNING),
    ("node1:4242:4300 [3] NCCL INFO Channel 00/02 : 0 1 2 3", Level.INFO),
    ('{"level": "error", "msg": "bad shard"}', Level.ERROR),
    ('{"level": 30, "msg": "pino"}', Level.INFO),
    ('{"level": "warn"', Level.INFO),
    ("/lib/python3.11/site-packages/torch/x.py:12: UserWarning: deprecated", Level.WARNING),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", Level.ERROR),
    ("torch.OutOfMemoryError: CUDA out of memory", Level.ERROR),
    ("no errors found", Level.INFO),
    ("the ERRORS table has 3 rows", Level.INFO),
    ("", Level.INFO),
]


@pytest.mark.parametrize(("line", "level"), LINES)
def test_the_usual_formats(line: str, level: Level) -> None:
    assert LevelJudge().level(line) is level


def test_a_traceback_is_an_error_to_its_last_line() -> None:
    judge = LevelJudge()
    text = [
        "[rank2]: Traceback (most recent call last):", '[rank2]:   File "train.py", line 8, in <module>',
        "[rank2]:     main()", "[rank2]: ValueError: bad batch", "step 13",
    ]  # fmt: skip
    assert [judge.level(line) for line in text] == [Level.ERROR] * 4 + [Level.INFO]


def test_tracebacks_of_two_ranks_do_not_mix() -> None:
    kept = LevelFilter(Level.ERROR)
    assert kept.keep(1, 2, "err", "Traceback (most recent call last):") is not None
    assert kept.keep(1, 3, "err", "  an indented line of another rank") is None
    assert kept.keep(1, 2, "err", '  File "x.py"\nValueError: x\nstep 1') == '  File "x.py"\nValueError: x'
    assert LevelFilter(Level.DEBUG).keep(1, 2, "out", "a\nb") == "a\nb"


def test_the_same_line_with_other_numbers() -> None:
    assert masked("[rank3]: connect to 10.0.0.3:29500 failed after 1.5 s (0x7fff)") == masked(
        "[rank12]: connect to 10.0.0.17:29501 failed after 12 s (0x8aab)"
    )
    assert masked("loss is NaN at step 7") != masked("loss is inf at step 7")


def test_what_is_too_much_is_left_out_and_counted() -> None:
    budget = Budget(100.0, 0.0)
    assert budget.takes(0, "x" * 900, 0.0)
    assert not budget.takes(0, "y\n" * 100, 0.0)
    assert not budget.takes(1, "z" * 200, 0.5)
    assert budget.left_out == {0: 100, 1: 1}
    assert budget.takes(1, "z" * 200, 3.0)
    assert Budget(None, 0.0).takes(0, "x" * 10**7, 0.0)


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_line_has_a_level(line: str, next_: str) -> None:
    judge = LevelJudge()
    assert judge.level(line) in Level
    assert judge.level(next_) in Level
    masked(line)
