"""What is typed reaches the one worker, and after a restart the next one."""

import os
from pathlib import Path

import pytest

from holdfast.cli.job.standard_input import StandardInput, pipe_of


@pytest.fixture
def typed(tmp_path: Path) -> tuple[StandardInput, int]:
    reading, writing = os.pipe()
    one = StandardInput(tmp_path, reading)
    one.start()
    return one, writing


def test_a_worker_reads_what_is_typed_to_its_end(typed: tuple[StandardInput, int]) -> None:
    one, keyboard = typed
    os.write(keyboard, b"first\n")
    with open(pipe_of(one.path, 1), "rb") as worker:
        assert worker.readline() == b"first\n"
        os.write(keyboard, b"second\n")
        os.close(keyboard)
        assert worker.read() == b"second\n"
    with open(pipe_of(one.path, 2), "rb") as next_one:
        assert next_one.read() == b""


def test_what_is_typed_after_a_worker_ended_waits_for_the_next(typed: tuple[StandardInput, int]) -> None:
    one, keyboard = typed
    with open(pipe_of(one.path, 1), "rb") as worker:
        os.write(keyboard, b"for the first\n")
        assert worker.readline() == b"for the first\n"
    os.write(keyboard, b"for the second\n")
    with open(pipe_of(one.path, 2), "rb") as worker:
        assert worker.readline() == b"for the second\n"
        os.close(keyboard)
        assert worker.read() == b""


def test_only_the_user_may_open_the_pipe(typed: tuple[StandardInput, int]) -> None:
    one, keyboard = typed
    assert os.stat(pipe_of(one.path, 1)).st_mode & 0o777 == 0o600
    os.close(keyboard)
