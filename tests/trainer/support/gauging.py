"""One rank's memory by kind, expected and measured, under several settings. Run in children of the fork server."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from joining import joined

from holdfast.trainer.__main__ import parse
from holdfast.trainer.memory.expected import expect
from holdfast.trainer.memory.measured import STEPS, Gauge
from holdfast.trainer.settings.launch import from_environment
from holdfast.trainer.settings.layout import plan, vocab_of


def both(folder: Path, argv: list[str]) -> dict[str, Any]:
    """What was expected of this rank before it met the others, and what it then held."""
    config, launch = parse(argv), from_environment(os.environ)
    vocab = vocab_of(config.data.tokenizer)
    expected = expect(config, plan(config, launch.world, vocab), vocab, "cpu")
    with joined(argv) as rank:
        trainer = rank.trainer()
        with Gauge(trainer.executor, trainer.stages, trainer.optimizer, rank.mesh.device) as gauge:
            for step in range(STEPS):
                trainer.step(step)
            measured = gauge.result()
        return {"expected": asdict(expected.ranks[rank.mesh.pp_rank]), "measured": measured.kinds()}
