"""Every metric of `/metrics`, as a scrape of a controller with a node and a job shows it."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from markdown_table import table

from holdfast.base.config.controller import ControllerConfig
from holdfast.controller import app
from holdfast.controller.http.metrics import Metrics
from holdfast.controller.http.metrics_text import HELP
from holdfast.controller.shell.report import Report
from holdfast.controller.state import events as e
from holdfast.controller.state.model import Instant, JobSpec
from holdfast.diagnostics.catalog.verdicts import Grade, Verdict
from holdfast.plan.plan import Layers, Mesh, Plan
from holdfast.plan.planned_step import PlannedStep
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.plans import encode_plan

# A made-up host and GPU, with the gauges that every real one has.
_SENT = ("host_snapshot", "host_checkpoint", "host_disk")
HOST = {"cpu_ratio": 0.5, "memory_used_bytes": 1e9, "memory_total_bytes": 2e9, "load_1m": 1.0}
HOST |= {name.removeprefix("host_").removesuffix("_total"): 1.0 for name in HELP if name.startswith(_SENT)}
GPU = {"utilization_ratio": 0.9, "memory_used_bytes": 1e9, "temperature_celsius": 60.0, "power_watts": 300.0}


def metrics() -> str:
    """Names, types, labels and help, from a scrape of a controller with a node and a job."""
    rows = []
    for name, kind, text, labels in _families(_scrape()):
        rows.append((f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), text))
    return table(("name", "type", "labels", "meaning"), rows)


def _scrape() -> str:
    with tempfile.TemporaryDirectory() as folder:
        shell = app.build(ControllerConfig(state_dir=Path(folder)))
        try:
            clock = Instant(mono=1000.0, wall=1_000_000.0)
            gpu = t.Gpu(0, "GPU-0", "H200", "0000:00:00.0")
            nic = t.Nic("mlx5_0/1", "rdma", 400_000_000_000)
            identity = t.Identity("node0", "node0", "i", gpus=(gpu,), nics=(nic,), slots=1, memory_bytes=2 << 30)
            spec = JobSpec("j", "job", msg.Program("train.py"), nnodes=1, nproc=1)
            worker = t.WorkerSample(0, 1, 1, step=1, phase=t.Phase.TRAIN, progress_age=0.1, median_step=0.3)
            steps = tuple(t.StepRecord(0, 1, n, 10**15 + n, 0.3, 2.0, 100) for n in range(4))
            gauges = (t.GpuGauges(0, GPU),)
            frame = t.Frame(1, 10**15, 10**12, host=HOST, gpus=gauges, workers=(worker,), steps=steps)
            brain = shell.brain
            brain.handle(e.AgentJoined(msg.Hello(identity)), clock)
            brain.handle(e.JobSubmitted(spec), clock)
            answer = msg.CommandResult(f"{brain.c.commands.boot}-1", True, data={"host": "h", "port": "1"})
            brain.handle(e.ResultSeen("node0", answer), clock)
            brain.handle(e.FrameSeen("node0", frame), clock)
            plan = encode_plan(Plan("1f1b", Mesh.of(dp=1), (Layers(0, 1, 0),), 1, ((),)), PlannedStep(0.25))
            brain.handle(e.EventSeen("node0", t.PlanPublished("j", 1, plan)), clock)
            exited = t.WorkerExited("j", 1, 0, 1, 10**15, -1, 9)
            brain.handle(e.EventSeen("node0", exited), clock)
            brain.diagnoses.newest["node0"] = {
                ("gemm", "flops"): Verdict("node0", "gemm", Grade.PASS, "flops", value=1.0)
            }
            brain.handle(e.StopRequested(0.0), Instant(1001.0, 1_000_001.0))
            return Metrics().scrape(Report(shell, -1))().decode()
        finally:
            shell.journal.close()


def _families(text: str) -> Iterator[tuple[str, str, str, list[str]]]:
    helps: dict[str, str] = {}
    kinds: dict[str, str] = {}
    labels: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, helps[name] = line.split(" ", 3)
        elif line.startswith("# TYPE "):
            _, _, name, kinds[name] = line.split(" ", 3)
        elif match := re.match(r"([\w:]+?)(?:\{(.*)\})? ", line):
            name = match[1] if match[1] in kinds else re.sub(r"_(count|sum)$", "", match[1])
            found = labels.setdefault(name, [])
            found += [label for label in re.findall(r'(\w+)="', match[2] or "") if label not in found]
    for name in sorted(kinds):
        yield name, kinds[name], helps[name], labels.get(name, [])
