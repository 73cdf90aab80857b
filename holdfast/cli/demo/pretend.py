"""`holdfast demo --pretend PPxDPxTP`: the page of a large job, with a cluster that is made up."""

import asyncio
import re
from pathlib import Path

from holdfast.base import service
from holdfast.base.address import format_address
from holdfast.base.bounds import MAX_NODES
from holdfast.base.errors import UsageError
from holdfast.cli.common import output

HISTORY_S = 6 * 3600.0
STEP_S = 6.34
"""Duration of a step of MegaScale's 175B model on 12,288 GPUs (arXiv 2402.15627, table 2)."""
_MOST_RANKS = 16_384
_GPUS = 8
_LAYERS_A_STAGE = 12
_MICRO_BATCHES = 8
_MAX_STEPS = 100_000
_SILENCE_S = 15.0
"""All agents live in this one process: a moment in which it is busy is no silence of theirs."""
_HOST = "127.0.0.1"


def sizes(text: str) -> tuple[int, int, int]:
    """(pp, dp, tp) of "8x192x8". UsageError for what is no mesh, or too large a one."""
    match = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})x([0-9]{1,5})", text)
    if match is None:
        raise UsageError(f"--pretend {text!r}: give a mesh as PPxDPxTP, e.g. 8x192x8")
    pp, dp, tp = (int(size) for size in match.groups())
    ranks = pp * dp * tp
    if not 2 <= ranks <= min(_MOST_RANKS, _GPUS * MAX_NODES) or pp > 64 or tp > 64:
        raise UsageError(f"--pretend {text}: {ranks} ranks; from 2 to {_MOST_RANKS}, pp and tp up to 64")
    per_node = min(_GPUS, ranks)
    if ranks % per_node:
        raise UsageError(f"--pretend {text}: {ranks} ranks are no whole nodes of {per_node} GPUs")
    return pp, dp, tp


def pretend(mesh: tuple[int, int, int], http_port: int, state_dir: Path) -> int:
    """Serve until a signal comes."""
    return service.run(lambda stop: _serve(mesh, http_port, state_dir, stop))


async def _serve(mesh: tuple[int, int, int], http_port: int, state_dir: Path, stop: asyncio.Event) -> int:
    from holdfast.controller import pretended as engine
    from holdfast.controller.simulation.hosts import ClusterShape
    from holdfast.controller.simulation.real_time import PretendedJob
    from holdfast.controller.state.model import Options
    from holdfast.plan.schedules.one_f_one_b import one_f_one_b
    from holdfast.trainer.pipeline.job_plan import job_plan
    from holdfast.trainer.settings.layout import TrainerLayout

    pp, dp, tp = mesh
    layout = TrainerLayout(pp, dp, tp, chunks=1, local_micro_batches=_MICRO_BATCHES)
    plan = job_plan(layout, "1f1b", _LAYERS_A_STAGE * pp, one_f_one_b(pp, _MICRO_BATCHES), zero=0)
    ranks = pp * dp * tp
    gpus = min(_GPUS, ranks)
    shape = ClusterShape(
        ranks // gpus, spares=max(2, ranks // gpus // 64), gpus=gpus, step=STEP_S, start=8.0, restore=4.0
    )
    output.err().print(f"making {HISTORY_S / 3600:.0f} hours of {ranks:,} ranks on {shape.nodes:,} nodes ...")
    made = engine.pretend(
        shape,
        PretendedJob(plan, _MICRO_BATCHES, _MAX_STEPS),
        state_dir,
        HISTORY_S,
        options=Options(silence_floor=_SILENCE_S),
    )
    async with engine.serving_pretended(made, _HOST, http_port) as port:
        output.err().print(
            f"[bold]holdfast demo[/]: nothing here is real. The page: http://{format_address(_HOST, port)}/"
        )
        faults = asyncio.ensure_future(engine.fault_rounds(made))
        await stop.wait()
        faults.cancel()
    return 0
