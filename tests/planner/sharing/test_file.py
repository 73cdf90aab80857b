"""Files of jobs: what they mean, and one line for each error."""

from __future__ import annotations

from math import inf

import pytest

from holdfast.planner.sharing.errors import SharingError
from holdfast.planner.sharing.file import parse
from holdfast.planner.sharing.jobs import SharedJob

GOOD = """
slots = 4
memory = "80GB"
[[job]]
name = "llm"
k = 4
forward_s = 0.1
backward_s = 0.2
sync_s = 0.02
iterations = 1000
states = "20GB"
activations = "24GiB"
submitted_s = 5
partial = false
[[job]]
k = 1
forward_s = 1
backward_s = 2
iterations = 3
"""


def test_a_file() -> None:
    found = parse(GOOD)
    assert (found.slots, found.memory_bytes) == (4, 80e9)
    assert found.jobs == (
        SharedJob("llm", 4, 0.1, 0.2, 1000, 0.02, 20e9, 24 * 2.0**30, 5.0, False),
        SharedJob("job2", 1, 1.0, 2.0, 3),
    )
    least = parse("slots = 1\n[[job]]\nk = 1\nforward_s = 1\nbackward_s = 0\niterations = 1\n")
    assert least.memory_bytes == inf


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("slots = 4", "", "jobs.toml: the file lacks slots"),
        ("slots = 4", "slots = 0", "the file slots is 0: must be a whole number from 1 to 4,096"),
        ("slots = 4", "slots = true", "the file slots is True: must be a whole number"),
        ("slots = 4", "slot = 4", "the file has 'slot', which is no key of it; did you mean slots?"),
        ('memory = "80GB"', "memory = 80", "the file memory is '80': must be a size in quotes"),
        ('memory = "80GB"', 'memory = "much"', "the file memory is 'much': must be a size in quotes"),
        ("k = 4", "k = 4.5", "job 1 k is 4.5: must be a whole number from 1 to 4,096"),
        ("k = 4", "", "job 1 lacks k"),
        ("forward_s = 0.1", "forward_s = 0", "job 1 forward_s is 0: must be above 0"),
        ("forward_s = 0.1", "forward_s = nan", "job 1 forward_s is nan: must be seconds from 0 to 1e+09"),
        ("backward_s = 0.2", "backward_s = -1", "job 1 backward_s is -1: must be seconds"),
        ("sync_s = 0.02", "sync_s = inf", "job 1 sync_s is inf: must be seconds"),
        ("iterations = 1000", "iterations = 0", "job 1 iterations is 0: must be a whole number"),
        ("iterations = 1000", "iterations = 100000", "400,003 roles in all iterations, 200,000 at most"),
        ("partial = false", 'partial = "no"', "job 1 partial is no: write true or false"),
        ('name = "llm"', 'name = ""', "job 1 name is ''"),
        ('name = "llm"', "nome = 1", "job 1 has 'nome', which is no key of it; did you mean name?"),
        ("slots = 4", "slots = 3", "jobs.toml: job llm has 4 roles, and there are 3 slots"),
        ("20GB", "60GB", "jobs.toml: job llm needs 85.77 GB on a slot, which has 80 GB"),
        ("k = 1\n", 'k = 1\nname = "llm"\n', "jobs.toml: two jobs are named llm"),
        ("[[job]]", "[[jobs]]", "the file has 'jobs', which is no key of it; did you mean job?"),
        (GOOD, "slots = 4", "no jobs: write a table [[job]] for each"),
        (GOOD, "slots = 4\njob = 3", "no jobs: write a table [[job]] for each"),
        (GOOD, "slots = 4\njob = [3]", "no jobs: write a table [[job]] for each"),
    ],
)
def test_what_is_wrong_is_one_line(old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(SharingError) as error:
        parse(GOOD.replace(old, new), "jobs.toml")
    assert says in str(error.value)
    assert str(error.value).startswith("jobs.toml: ")
    assert "\n" not in str(error.value)
