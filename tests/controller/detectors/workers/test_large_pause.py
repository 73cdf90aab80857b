"""A pause of 12,288 ranks is cheap for the controller: every rank is checked now and then, not at every tick."""

from holdfast.controller.detectors.workers import hang
from holdfast.controller.detectors.workers.hang import HangDetector
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.diagnostics.hang.stillness import Liveness, Sight
from holdfast.wire import types as t
from tests.controller.support.standstills import OPTIONS, STEPS, at, seen

WORLD = 12_288


def test_all_ranks_are_not_looked_at_in_every_tick(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    ranks = RankTable(WORLD)
    for rank in range(WORLD):
        ranks.mark(rank, RankState.RUNNING)
        sample = t.WorkerSample(
            rank, 1, 1, step=9, phase=t.Phase.TRAIN, progress_age=9.0, tick_age=0.05, still_age=8.0, activity=seen(0.0)
        )
        ranks.update(sample, 50.0)
    looked = []
    real = hang.look

    def counted(*given: object, **more: object) -> Sight:
        looked.append(1)
        return real(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(hang, "look", counted)
    detector = HangDetector(OPTIONS)
    for tick in range(20):  # a second
        assert detector.observe(ranks, 1, STEPS, at(50.05 + 0.05 * tick)) == []
        assert detector.pause is not None
        assert (detector.pause.life, len(detector.pause.ranks)) == (Liveness.BUSY, WORLD)
    assert len(looked) == WORLD
