"""Steps, saved files and phases that hooks observe in a script which reports none itself.

A part of `probe`, for hooks and the bootstrap. Each counts only while the script has called neither `probe.step` nor
`probe.phase`. Without an agent everything here does nothing.
"""

import math
import time

from holdfast.agent import probe
from holdfast.agent.probe_file import layout, side_files
from holdfast.agent.probe_file.memory import PHASE_INDEX, TRAIN
from holdfast.wire.types import SPOILT, Phase


def step(n: int, spoilt: bool = False, is_numbered: bool = False) -> None:
    """A hook saw optimizer step `n` end. `spoilt`: the parameters are not finite any more. `is_numbered`: the script's
    framework gave the number; else it is counted from 0."""
    live = probe._live
    if live is not None and not live.spoken:
        if live.phase != TRAIN:
            live.phase = TRAIN  # without its clock: the first step began before it was seen
            live.words[layout.WORD_COUNTED] = 1
        if is_numbered:
            live.words[layout.WORD_COUNTED] = 0
        live.record_step(n, SPOILT if spoilt else math.nan, 0)


def save(target: object, is_sure: bool = True) -> None:
    """A hook saw a file of state finished: its path, or the open file. Counts after the first step. Many
    pieces of one file, or of one moment, are one. `is_sure`: else the path decides whether it is state."""
    live = probe._live
    if live is not None and not live.spoken and live.step >= 0:
        side_files.leave_saved(live, target, is_sure, time.monotonic_ns())


def phase(name: Phase) -> None:
    """A hook or the bootstrap saw this phase begin."""
    live = probe._live
    if live is not None and not live.spoken:
        live.set_phase(PHASE_INDEX[name])


def spoke() -> bool:
    """Whether the script itself has reported a step or a phase."""
    live = probe._live
    return live is not None and live.spoken


def stepped() -> bool:
    """Whether any step of this process was reported."""
    live = probe._live
    return live is not None and live.step >= 0
