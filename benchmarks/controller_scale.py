"""One controller process on one core against a whole cluster: 1,536 agents (12,288 GPUs) that train.

python benchmarks/controller_scale.py [--json] [--agents 1536] [--seconds 60]

Each agent has its own connection and stream and sends a frame a second with 1,000 samples of each of 8 NICs, both
ways, and the states and steps of 8 workers. The controller is pinned to one core, the agents to the others. A backlog
would show in more and more frames without acknowledgement, in acknowledgements that take longer at the end than at
the beginning, and in frames that leave later and later because the stream pushes back.
"""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from common import Json, cpu_seconds, end, finish, get, memory_mb, parser, post, quantile, scratch, wait_for

SETTLE_S = 10.0


class Generator:
    def __init__(self, address: str, first: int, count: int, began: float, cores: str, options: Any) -> None:
        script = Path(__file__).with_name("simulated_agents.py")
        numbers = {"--first": first, "--count": count, "--began": began, "--samples": options.samples,
                   "--step": options.step}  # fmt: skip
        argv = [sys.executable, str(script), "--address", address]
        argv += [str(word) for pair in numbers.items() for word in pair]
        self.process = subprocess.Popen(
            ["taskset", "-c", cores, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.first, self.count = first, count

    def answer(self) -> Json:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the agents from {self.first} on ended with {self.process.wait()}")
        answer: Json = json.loads(line)
        return answer

    def ask(self, **ask: object) -> Json:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(ask) + "\n")
        self.process.stdin.flush()
        return self.answer()


def metrics_of(text: str) -> dict[str, float]:
    """The values of series without labels."""
    pairs = (line.split() for line in text.splitlines() if not line.startswith("#") and "{" not in line)
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2}


def scrape(http: str) -> tuple[float, bytes]:
    start = time.perf_counter()
    body = get(http, "/metrics", 60.0)
    return time.perf_counter() - start, body


def frames_received(http: str) -> float:
    return metrics_of(scrape(http)[1].decode())["holdfast_frames_total"]


def start_controller(folder: Path, core: str) -> tuple["subprocess.Popen[str]", Json]:
    argv = ["taskset", "-c", core, sys.executable, "-m", "holdfast", "controller"]
    argv += ["--grpc-port", "0", "--http-port", "0", "--state-dir", str(folder / "controller")]
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")} | {"HOLDFAST_CONFIG": ""}
    with open(folder / "controller.log", "w") as log:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit((folder / "controller.log").read_text())
    return process, json.loads(line)


def watch(controller: "subprocess.Popen[str]", http: str, seconds: float) -> Json:
    """The window: CPU time, memory, how quickly the loop answers, and scrapes in between."""
    cpu, start = cpu_seconds(controller.pid), time.monotonic()
    answers, scrapes, lags, size = [], [], [], 0
    next_scrape = start + 5
    while (now := time.monotonic()) < start + seconds:
        if now >= next_scrape:
            next_scrape = now + 10
            took, body = scrape(http)
            scrapes.append(took)
            size = len(body)
            lags.append(metrics_of(body.decode())["holdfast_controller_loop_lag_seconds"])
        began = time.perf_counter()
        get(http, "/healthz")
        answers.append(time.perf_counter() - began)
        time.sleep(0.2)
    elapsed = time.monotonic() - start
    return {
        "start": start, "elapsed": elapsed, "cpu": (cpu_seconds(controller.pid) - cpu) / elapsed, "answers": answers,
        "scrapes": scrapes, "lags": lags, "metrics_bytes": size,
    }  # fmt: skip


def silenced(http: str, generators: list[Generator], node: int) -> Json:
    """Silence one agent whose stream stays open; how long after its limit it is found."""
    generator = next(g for g in generators if g.first <= node < g.first + g.count)
    last = generator.ask(do="silence", node=node)["last_sent"]

    def look() -> Any:
        for incident in json.loads(get(http, "/api/v1/incidents")):
            for finding in incident["findings"]:
                if finding["kind"] == "node-silent" and finding["subject"] == f"node{node}" and finding["at"] > last:
                    return finding
        return None

    finding = wait_for(f"node{node} silent", 30, look, every=0.5)
    generator.ask(do="wake", node=node)
    limit = finding["evidence"]["limit_s"]
    return {"limit": limit, "after_limit": finding["at"] - last - limit}


def main() -> None:
    cli = parser(__doc__)
    cli.add_argument("--agents", type=int, default=1536)
    cli.add_argument("--seconds", type=float, default=60.0)
    cli.add_argument("--samples", type=int, default=1000, help="per NIC and frame")
    cli.add_argument("--step", type=float, default=2.0, help="seconds of a training step")
    cli.add_argument("--generators", type=int, default=2, help="processes that play the agents")
    options = cli.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    own, others = str(cores[0]), ",".join(map(str, cores[1:] or cores))
    os.sched_setaffinity(0, set(cores[1:] or cores))
    with scratch() as folder:
        controller, where = start_controller(folder, own)
        generators: list[Generator] = []
        try:
            http = where["http"]
            began = time.time()
            per = -(-options.agents // options.generators)
            for first in range(0, options.agents, per):
                count = min(per, options.agents - first)
                generators.append(Generator(where["grpc"], first, count, began, others, options))
            for generator in generators:
                generator.answer()
            program = {"target": "/nowhere/train.py"}
            post(http, "/api/v1/jobs", {"name": "big", "program": program, "nnodes": options.agents,
                                        "nproc_per_node": 8, "max_restarts": 100})  # fmt: skip
            wait_for("job running", 60, lambda: json.loads(get(http, "/api/v1/job"))["state"] == "running", every=0.5)
            time.sleep(SETTLE_S)
            result = measure(controller, http, generators, options)
        finally:
            for generator in generators:
                end(generator.process)
            end(controller)
    report(result, options)


def measure(controller: "subprocess.Popen[str]", http: str, generators: list[Generator], options: Any) -> Json:
    counting = time.monotonic()
    received_before = frames_received(http)
    before = [g.ask(do="report", since=math.inf) for g in generators]
    window = watch(controller, http, options.seconds)
    reports = [g.ask(do="report", since=window["start"]) for g in generators]
    counting = time.monotonic() - counting
    received_after = frames_received(http)
    errors = [e for r in reports for e in r["errors"]]
    third = options.seconds / 3
    acks = [pair for r in reports for pair in r["acks"]]
    late = [pair for r in reports for pair in r["late"]]
    first, last = window["start"] + third, window["start"] + 2 * third
    rss, _ = memory_mb(controller.pid)
    job = json.loads(get(http, "/api/v1/job"))
    silence = [silenced(http, generators, n) for n in (1, options.agents // 2, options.agents - 1)]
    incidents = json.loads(get(http, "/api/v1/incidents"))
    false = [i for i in incidents if i["kind"] != "node-silent" or i["culprit"] not in
             {"node1", f"node{options.agents // 2}", f"node{options.agents - 1}"}]  # fmt: skip
    return {
        "agents": options.agents,
        "ranks": sum(r["training"] for r in reports),
        "seconds": window["elapsed"],
        "frames_sent": sum(r["sent"] for r in reports) - sum(r["sent"] for r in before),
        "frames_per_second": (received_after - received_before) / counting,
        "unacknowledged_before": sum(r["unacknowledged"] for r in before),
        "unacknowledged_after": sum(r["unacknowledged"] for r in reports),
        "job_state": job["state"],
        "job_step": job["step"],
        "broken_streams": errors[:3],
        "false_findings": [f"{i['kind']} {i['culprit']}" for i in false][:5],
        "metrics_bytes": window["metrics_bytes"],
        "medians_s": {
            "holdfast": {
                "metrics": median(window["scrapes"]),
                "metrics_max": max(window["scrapes"]),
                "loop_answer": median(window["answers"]),
                "loop_answer_p99": quantile(window["answers"], 0.99),
                "ack_first_third": median([d for at, d in acks if at < first]),
                "ack_last_third": median([d for at, d in acks if at > last]),
                "frame_late_first_third": median([d for at, d in late if at < first]),
                "frame_late_last_third": median([d for at, d in late if at > last]),
                "silence_after_limit": median(s["after_limit"] for s in silence),
                "silence_after_limit_max": max(s["after_limit"] for s in silence),
                "silence_limit": median(s["limit"] for s in silence),
            }
        },
        "cpu_share_of_core": window["cpu"],
        "rss_mb": rss,
    }


def report(result: Json, options: Any) -> None:
    m = result["medians_s"]["holdfast"]
    before, after = result["unacknowledged_before"], result["unacknowledged_after"]
    grows = m["ack_last_third"] - m["ack_first_third"]
    late = m["frame_late_last_third"] - m["frame_late_first_third"]
    rows = [
        ("agents / ranks training", f"{result['agents']} / {result['ranks']}", ""),
        ("frames received per second", result["frames_per_second"], f"{options.agents}"),
        ("frames on the way (unacknowledged): before / after", f"{before} / {after}", "no growth"),
        ("acknowledged after, s: first / last third", f"{m['ack_first_third']:.2f} / {m['ack_last_third']:.2f}",
         "no growth"),
        ("frames late, s: first / last third",
         f"{m['frame_late_first_third']:.3f} / {m['frame_late_last_third']:.3f}", "no growth"),
        ("controller, share of one core", f"{result['cpu_share_of_core']:.1%}", "< 100%"),
        ("loop answers in, s: median / p99", f"{m['loop_answer']:.3f} / {m['loop_answer_p99']:.3f}", ""),
        ("/metrics, s: median / max", f"{m['metrics']:.2f} / {m['metrics_max']:.2f}", "<= 2"),
        ("/metrics, MB", result["metrics_bytes"] / 1e6, ""),
        ("silence found after its limit, s: median / max",
         f"{m['silence_after_limit']:.2f} / {m['silence_after_limit_max']:.2f}", "<= 2"),
        ("silence limit, s", m["silence_limit"], ""),
        ("controller, RSS MB", result["rss_mb"], "stated"),
        ("job", f"{result['job_state']}, step {result['job_step']}", "running"),
        ("broken streams / false findings", f"{result['broken_streams']} / {result['false_findings']}", "none"),
    ]  # fmt: skip
    result["goals_met"] = {
        "no_backlog": after - before < options.agents and grows < 0.5 and late < 0.5,
        "silence": m["silence_after_limit_max"] <= 2,
        "metrics": m["metrics_max"] <= 2,
    }
    finish(result, options.json, ("", "measured", "goal"), rows)


if __name__ == "__main__":
    main()
