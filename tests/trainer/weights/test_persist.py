"""What the trainer reports to its manager."""

from __future__ import annotations

from dataclasses import MISSING, fields

from holdfast.checkpoint.worker.options import CheckpointOptions
from holdfast.trainer.settings.config import CheckpointConfig


def test_a_script_and_the_trainer_have_the_same_defaults() -> None:
    """Both are written out, as each is a reference of its own: Options is the script's, without the trainer's torch."""
    ours = {one.name: one.default for one in fields(CheckpointConfig)}
    theirs = {one.name: one.default for one in fields(CheckpointOptions) if one.default is not MISSING}
    assert theirs == {name: ours[name] for name in theirs}
    assert ours.keys() - {one.name for one in fields(CheckpointOptions)} == {
        "restore"
    }  # asked of the loop, not of the manager
