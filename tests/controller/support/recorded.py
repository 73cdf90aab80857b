"""A virtual cluster that is recorded, and the recordings that are kept."""

import json
from pathlib import Path

from holdfast.base.errors import HoldfastError
from holdfast.controller.brain.cluster_brain import ClusterBrain
from holdfast.controller.journal.recording import REFUSED, Recorder, Start, did
from holdfast.controller.state.events import Action, BrainEvent, FrameSeen
from holdfast.controller.state.model import Instant, Options
from holdfast.wire import codec as wire
from tests.controller.support.virtual import Virtual

RECORDINGS = Path(__file__).parents[1] / "journal" / "recordings"


class Recorded(Virtual):
    """A virtual cluster whose controller records, through all of its restarts."""

    def __init__(self, path: Path, nodes: int = 2, options: Options | None = None) -> None:
        self.path = path
        super().__init__(nodes=nodes, options=options)

    def _boot(self) -> ClusterBrain:
        brain = super()._boot()
        entities = [(kind, key, json.loads(json.dumps(doc))) for (kind, key), doc in self.saved.items()]
        boot = f"b{self.boots}"
        self.recorder = Recorder(self.path, Start(boot, self.options, entities, self.steps, self.instant))
        inner = brain.handle

        def handle(event: BrainEvent, now: Instant) -> list[Action]:
            if isinstance(event, FrameSeen):  # as it comes from the wire
                frame = wire.decode_agent(wire.encode_agent(event.frame))
                event = FrameSeen(event.node, frame)  # type: ignore[arg-type]
            try:
                actions = inner(event, now)
            except HoldfastError:
                self.recorder.add(event, now, [REFUSED])
                raise
            self.recorder.add(event, now, did(actions))
            return actions

        brain.handle = handle  # type: ignore[method-assign]
        return brain

    def restart_controller(self, away: float = 1.0) -> None:
        self.recorder.close()
        super().restart_controller(away)
