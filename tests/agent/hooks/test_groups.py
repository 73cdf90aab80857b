"""When the number of an operation in a group is certain, without torch."""

import threading

import pytest

from holdfast.agent.hooks.groups import Group

GLOO = frozenset({"ProcessGroupGloo"})


class FakeGroup:
    """A process group of torch that has begun so many operations."""

    group_name, group_desc = "7", "default_pg"
    _device_types = ()

    def __init__(self) -> None:
        self.begun = 4

    def rank(self) -> int:
        return 0

    def _get_sequence_number_for_group(self) -> int:
        return self.begun


def began(ranks: list[int], backends: frozenset[str], by: int = 1, sent: int = 0) -> bool:
    torchs = FakeGroup()
    group = Group(torchs, ranks, backends)
    group.begins()
    number = group.begun(torchs)
    torchs.begun += by
    group.sent += sent
    return group.is_number(torchs, number)


@pytest.mark.parametrize(
    ("ranks", "backends", "by", "sent", "expected"),
    [
        ([0, 2, 3], GLOO, 1, 0, True),
        ([0, 2, 3], GLOO, 2, 1, True),  # a message of this thread, which is counted
        ([0, 2, 3], GLOO, 2, 0, False),  # C++ began another one meanwhile
        ([2, 0, 3], GLOO, 1, 0, False),  # a tree that is not that of the sorted ranks
        ([0, 2, 3], frozenset({"ProcessGroupNCCL"}), 1, 0, False),
        ([0, 2, 3], GLOO | {"ProcessGroupNCCL"}, 1, 0, False),
    ],
)
def test_a_number_is_certain_where_no_other_operation_began(
    ranks: list[int], backends: frozenset[str], by: int, sent: int, expected: bool
) -> None:
    assert began(ranks, backends, by, sent) is expected


@pytest.mark.parametrize(("by", "sent", "expected"), [(1, 0, True), (2, 0, False), (2, 1, False)])
def test_a_group_that_two_threads_use_has_certain_numbers_without_messages(by: int, sent: int, expected: bool) -> None:
    torchs = FakeGroup()
    group = Group(torchs, [0, 1], GLOO)
    group.begins()
    other = threading.Thread(target=group.begins)
    other.start()
    other.join()
    torchs.begun += by
    group.sent += sent
    assert group.is_number(torchs, 4) is expected
