"""How often blame names a rank where none is slow: windows of quiet training, simulated and real.

python benchmarks/blame_quiet.py [--json] [--windows 1000] [--slow 30] [--run SECONDS [--worlds 4 8] [--width 64]
    [--keep FOLDER]] [--spans FOLDER...] [--steps 40 60] [--chance P...]

--windows: so many simulated windows of 40 steps, of eight ranks of one stage and of two stages whose ranks wait for
their processors; and of 100 steps of three ranks of DDP beside other programs, which take a fifth, or most, of a step.
--slow: so many of the latter with each kind of a slow rank. --run: a script of DDP that knows nothing of us, under the
hooks, with steps of milliseconds, for so long each; its spans are cut into windows. --spans: the same of what is on
disk already (a job's folder, quiet from end to end). --chance: instead of the default, to compare. A plan's imbalance
names no rank.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from common import Json, finish, parser, scratch
from simulated_spans import Job, simulate

from holdfast.agent.probe_file import layout as probe_layout
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.controller.simulation.ddp_spans import DdpJob, Extra, spans_of
from holdfast.diagnostics.blame.model import Culprit, Limits
from holdfast.diagnostics.blame.report import blame_of
from holdfast.diagnostics.files import span_files
from holdfast.diagnostics.steps import span_table
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.wire import messages as msg
from holdfast.wire import span_rows
from holdfast.wire.plans import encode_plan

JOBS = {
    "simulated 1x8x1": Job(1, 8, 1, micro_batches=4, noise=0.03, measures_cpu=True),
    "simulated 2x2x2, late wakeups": Job(2, 2, 2, micro_batches=4, noise=0.03, wakeup=0.001, measures_cpu=True),
}
BUSY = {
    "simulated DDP, 3 ranks, busy host": DdpJob(load=0.02),
    "simulated DDP, 3 ranks, very busy host": DdpJob(load=0.06, computes=0.9),
    "simulated DDP, 3 ranks, busy host whose kernel does not count it": DdpJob(load=0.02, counts_delay=False),
}
SLOW = {
    "5 ms asleep in forward": Extra(1, "forward", 0.005),
    "5 ms more computation in backward": Extra(2, "backward", 0.005, computes=True),
    "200 ms asleep in each tenth forward": Extra(1, "forward", 0.2, every=10),
    "30 ms asleep in the optimizer": Extra(0, "optimizer", 0.03),
}
WARM = 20
"""Steps at a job's beginning that are in no window."""
SCRIPT = Path(__file__).parent / "workers" / "quiet_ddp.py"
HOOKED = (
    "import os, runpy, sys; from holdfast.agent import probe; "
    "from holdfast.agent.hooks import torch_hooks; probe.attach(); torch_hooks.install(); "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__'); os._exit(0)"
)

Window = tuple[SpanTable, JobShape]


def simulated(job: Job, count: int, steps: int = 40) -> Iterator[Window]:
    for seed in range(count):
        table, plan = simulate(job, [], steps, 10_000 + seed)
        yield table, JobShape("job", "job", ("n0", "n1"), 4, encode_plan(plan))


def simulated_ddp(job: DdpJob, count: int, extras: tuple[Extra, ...] = ()) -> Iterator[Window]:
    for seed in range(count):
        yield spans_of(job, extras, 20_000 + seed), JobShape("job", "job", ("n0",), job.ranks)


def slow(name: str, job: DdpJob, extra: Extra, count: int) -> Json:
    """How many windows name the rank and its place, the rank only, and another rank."""
    right = rank_only = wrong = 0
    for table, shape in simulated_ddp(job, count, (extra,)):
        blame = blame_of(table, shape)
        found = [] if blame is None else [c for c in blame.culprits if c.rank >= 0]
        mine = [c for c in found if c.rank == extra.rank]
        is_right = any(c.what == extra.part and (extra.every == 1) == (c.every == 0) for c in mine)
        right += is_right
        rank_only += bool(mine) and not is_right
        wrong += len(mine) < len(found)
    return {"name": name, "windows": count, "right": right, "rank_only": rank_only, "wrong": wrong}


def windows(table: SpanTable, shape: JobShape, steps: int) -> Iterator[Window]:
    """One after the other, each with the step before it, whose end is the beginning of its first."""
    for first in range(int(table.step.min()) + WARM, int(table.step.max()) - steps, steps):
        yield table.of_steps(first - 1, first + steps - 1), shape


def run(world: int, seconds: float, width: int, folder: Path) -> Window:
    """The spans of a quiet script on this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    env = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    paths = [folder / f"probe-{rank}" for rank in range(world)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", HOOKED, str(SCRIPT), str(seconds), str(width)],
            env={**os.environ, **env, "RANK": str(rank), probe_layout.ENV_PATH: str(path)},
        )
        for rank, path in enumerate(paths)
    ]
    readers: dict[int, ProbeReader] = {}
    parts = []
    going = True
    while going:
        going = any(process.poll() is None for process in ranks)
        for rank, path in enumerate(paths):
            if rank not in readers and path.exists():
                readers[rank] = ProbeReader(str(path))
            if rank in readers and (rows := readers[rank].new_rows()):
                count, names = len(rows) // span_rows.ROW.size, readers[rank].names()
                parts.append((0, msg.WorkerSpans(rank, 1, count, 0, 0, 0, names, span_rows.pack(rows))))
        time.sleep(0.2 * going)
    if any(process.returncode for process in ranks):
        sys.exit("the script failed")
    return span_table.decode(parts), JobShape("quiet", "quiet", tuple(f"n{rank}" for rank in range(world)), 1)


def judged(name: str, some: Iterable[Window], chances: list[float]) -> Json:
    count = 0
    named: dict[str, list[list[Culprit]]] = {str(chance): [] for chance in chances}
    for table, shape in some:
        count += 1
        for chance in chances:
            blame = blame_of(table, shape, Limits(chance=chance))
            if blame is not None and (found := [c for c in blame.culprits if c.rank >= 0]):
                named[str(chance)].append(found)
    return {
        "name": name, "windows": count, "named": {chance: len(found) for chance, found in named.items()},
        "whom": {chance: [[(c.kind.value, c.rank, c.what, round(c.ratio, 3), round(c.z, 2), c.self_s) for c in one]
                          for one in found] for chance, found in named.items()},
    }  # fmt: skip


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--windows", type=int, default=0, help="simulated windows of each kind")
    options.add_argument("--slow", type=int, default=0, help="simulated windows with each kind of a slow rank")
    options.add_argument("--run", type=float, default=0.0, metavar="SECONDS", help="of a real quiet script")
    options.add_argument("--worlds", type=int, nargs="*", default=[4, 8], help="ranks of the script, one run each")
    options.add_argument("--width", type=int, default=64, help="of its layers")
    options.add_argument("--keep", type=Path, help="keep its spans here, as --spans reads them")
    options.add_argument("--spans", type=Path, nargs="*", default=[], help="folders of spans of quiet jobs")
    options.add_argument("--steps", type=int, nargs="*", default=[40, 60], help="in a window")
    options.add_argument("--chance", type=float, nargs="*", default=[Limits().chance], help="instead of the default")
    given = options.parse_args()
    results = [judged(name, simulated(job, given.windows), given.chance) for name, job in JOBS.items() if given.windows]
    results += [judged(n, simulated_ddp(job, given.windows), given.chance) for n, job in BUSY.items() if given.windows]
    for name, job in BUSY.items() if given.slow else ():
        for what, extra in SLOW.items():
            row = slow(f"{what}; {name}", job, extra, given.slow)
            print(*(f"{key} {value}," for key, value in row.items()), file=sys.stderr)
            results.append(row)
    quiet = [(str(folder), span_files.read(folder)) for folder in given.spans]
    for world in given.worlds if given.run else []:
        with scratch() as folder:
            window = run(world, given.run, given.width, folder)
        if given.keep is not None:
            (given.keep / f"ranks-{world}").mkdir(parents=True, exist_ok=True)
            span_files.write(*window, given.keep / f"ranks-{world}" / "1.parquet")
        quiet.append((f"script, {world} ranks", window))
    for name, (table, shape) in quiet:
        for steps in given.steps:
            results.append(judged(f"{name}, {steps} steps", windows(table, shape, steps), given.chance))
    rows = [
        (
            r["name"],
            r["windows"],
            *(f"{n}: {[whom[0][:5] for whom in r['whom'][chance]]}" for chance, n in r["named"].items()),
        )
        for r in results
        if "named" in r
    ]
    finish({"results": results}, given.json, ("quiet", "windows", *(f"named at {c}" for c in given.chance)), rows)


if __name__ == "__main__":
    main()
