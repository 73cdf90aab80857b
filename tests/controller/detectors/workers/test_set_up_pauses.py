"""The hang detector on ranks that wait for each other before the first step, in `init_process_group`."""

from holdfast.controller.detectors.workers.hang import HangDetector
from holdfast.controller.state.ranks import RankTable
from holdfast.diagnostics.hang.stillness import Liveness
from tests.controller.support.standstills import OPTIONS, at, frozen, seen


def before_training(*outside: int) -> RankTable:
    """Ranks wait in the rendezvous store; those outside of `init_process_group` read a pipe."""
    ranks = frozen(20.0, dead=False)
    for rank in range(8):
        ranks.operation[rank], ranks.pending[rank], ranks.standing[rank] = "init_process_group", None, None
        ranks.activity[rank] = seen(20.0, waits_for="a read from a socket to 127.0.0.1:29500")
        if rank in outside:
            ranks.operation[rank] = ""
            ranks.activity[rank] = seen(20.0, waits_for="a read from a pipe")
    return ranks


def test_who_has_not_come_to_the_set_up_holds_up_those_that_have() -> None:
    detector = HangDetector(OPTIONS)
    assert detector.observe(before_training(2), 1, [], at(50.05)) == []
    assert detector.pause is not None
    assert (detector.pause.life, detector.pause.ranks, len(detector.pause.waiting)) == (Liveness.IDLE, (2,), 7)
    assert detector.pause.text == "rank 2 waits for a read from a pipe; 7 wait for it in init_process_group"


def test_where_all_have_come_to_the_set_up_nobody_is_named() -> None:
    """The one that is missing may be no rank of this job, and the network may be the reason."""
    detector = HangDetector(OPTIONS)
    assert detector.observe(before_training(), 1, [], at(50.05)) == []
    assert detector.pause is not None
    assert (detector.pause.ranks, detector.pause.waiting) == (tuple(range(8)), ())
    assert detector.pause.verdict is None
