"""What every forked rank does before its test begins, and after it has ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.trainer.__main__ import parse
from holdfast.trainer.data.corpus import Corpus, open_corpus
from holdfast.trainer.mesh.mesh import RankMesh, choose_device, join, leave
from holdfast.trainer.run import loop
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.launch import Launch, from_environment
from holdfast.trainer.settings.layout import TrainerLayout, plan


@dataclass(frozen=True, slots=True)
class Joined:
    """A rank after the rendezvous."""

    config: Config
    launch: Launch
    corpus: Corpus
    layout: TrainerLayout
    mesh: RankMesh

    def trainer(self) -> loop.Trainer:
        return loop.Trainer(self.config, self.mesh, self.corpus)


@contextmanager
def joined(argv: list[str]) -> Iterator[Joined]:
    """This rank among the others, as `argv` wants them laid out, until the block ends."""
    config, launch = parse(argv), from_environment(os.environ)
    corpus = open_corpus(config.data)
    layout = plan(config, launch.world, corpus.vocab)
    mesh = join(config, launch, layout, choose_device(config, launch))
    try:
        yield Joined(config, launch, corpus, layout, mesh)
    finally:
        leave()
