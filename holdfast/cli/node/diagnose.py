"""`holdfast diagnose`: test nodes, and print the bad ones with reasons."""

import json
import subprocess
import sys
import tempfile
import time
from typing import Annotated

import typer
from rich.table import Table

from holdfast.base.errors import HoldfastError, UsageError
from holdfast.cli.common import completion, output
from holdfast.cli.common.client import Client
from holdfast.cli.common.extras import require
from holdfast.cli.common.options import Json, with_client
from holdfast.cli.common.progress import progress
from holdfast.diagnostics.catalog.catalog import BY_NAME, MOST_PASSES, NODE_S, Check, Scope, Suite, choose, parse_suite
from holdfast.diagnostics.catalog.results import CheckResult, parse_result

_EVERY_S = 0.2
_GRADE_STYLES = {"pass": "green", "degraded": "yellow", "fail": "bold red", "unable": "dim"}


@with_client
def diagnose(
    client: Client,
    node: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NODE]...", help="Default: all idle nodes.", autocompletion=completion.nodes),
    ] = None,
    suite: Annotated[
        str,
        typer.Option(
            metavar="SUITE",
            help="quick: under 1 minute. full: under 10 minutes.",
            autocompletion=completion.suites,
        ),
    ] = "quick",
    test: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Any of: {', '.join(BY_NAME)}.", autocompletion=completion.tests),
    ] = None,
    busy: Annotated[bool, typer.Option("--busy", help="Include nodes that train: it slows the job down.")] = False,
    passes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=MOST_PASSES,
            help="Tests of pairs without a failure after which a node or a link passes (0: 2 in quick, 8 in full). "
            "One that fails half of its tests is missed with probability 0.5^N.",
        ),
    ] = 0,
    local: Annotated[bool, typer.Option("--local", help="Test only this machine, without a controller.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Show passed tests too.")] = False,
    as_json: Json = False,
) -> int:
    """Run diagnostics on nodes and print the verdicts. Exit code 1 if any node fails."""
    size, tests = parse_suite(suite), test or []
    choose(size, tuple(tests))
    if local:
        if node:
            raise UsageError("--local tests this machine: it takes no NODE")
        doc = _local(suite, tests)
    else:
        doc = _watch(client, client.diagnose(node or [], suite, tests, busy, passes))
    if as_json:
        output.print_json(doc)
    else:
        output.out().print(verdict_table(doc, all_))
        output.say(_conclusion(doc))
    return 1 if doc["failed"] else 0


def _watch(client: Client, name: str) -> output.Json:
    """Wait until the diagnosis is done; print a line for every stage."""
    reported = ""
    with progress("tests") as report:
        while (doc := client.diagnosis(name))["state"] != "done":
            report(doc["jobs_done"], doc["jobs_done"] + doc["jobs_open"])
            reported = _note_stage(name, doc, reported)
            time.sleep(_EVERY_S)
    return doc


def _note_stage(name: str, doc: output.Json, reported: str) -> str:
    """A line for a stage other than the one that was reported; the stage."""
    stage = f"{doc['stage']}, round {doc['rounds']}" if doc["stage"] == "pairs" else str(doc["stage"])
    if stage != reported:
        output.note(f"{name}: {stage}: {doc['jobs_open']} tests of {len(doc['nodes'])} nodes to do")
    return stage


def _local(suite: str, tests: list[str]) -> output.Json:
    """Run the checks of a single node here, compared with fixed limits only."""
    from holdfast.diagnostics.isolation.nodes import Judgement
    from holdfast.diagnostics.isolation.pairs import Candidate

    size, here = parse_suite(suite), "here"
    checks = [c for c in choose(size, tuple(tests)) if c.scope is Scope.NODE]
    if not checks:
        raise UsageError("--local: these tests need other nodes")
    require("agent", "psutil")  # reported here: each test is another process
    began = time.time()
    judgement = Judgement({here: Candidate(here)}, {})
    with progress("tests") as report:
        for number, check in enumerate(checks):
            output.note(f"{check.name}: {check.does[0].lower()}{check.does[1:]}")
            report(number, len(checks))
            judgement.take(here, check.name, *_run_here(check, size))
    verdicts = [v for check in checks for v in judgement.node_verdicts(check, [here])]
    failed = sorted({v.node for v in verdicts if v.grade == "fail"})
    return {
        "id": "", "why": "by hand", "state": "done", "suite": suite, "tests": [c.name for c in checks],
        "nodes": [here], "stage": "done", "rounds": 0, "jobs_done": len(checks), "jobs_open": 0, "began": began,
        "ended": time.time(), "failed": failed, "cleared": [] if failed else [here],
        "verdicts": [v.to_doc() for v in verdicts],
    }  # fmt: skip


def _run_here(check: Check, size: Suite) -> tuple[list[CheckResult], str]:
    """The results of a check of this machine, and what went wrong; empty: nothing."""
    with tempfile.TemporaryDirectory(prefix="holdfast-check-") as folder:
        words = [sys.executable, "-m", "holdfast.diagnostics", check.name, "--json", "--folder", folder]
        words += ["--options", json.dumps({"suite": str(size)})]
        results: list[CheckResult] = []
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=NODE_S[size], check=False)
            results = [parse_result(line) for line in done.stdout.splitlines()]
            return results, done.stderr.strip().rpartition("\n")[2]
        except subprocess.TimeoutExpired:
            return results, f"killed after {NODE_S[size]:g} s"
        except HoldfastError as bad:
            return results, str(bad)


def verdict_table(doc: output.Json, everything: bool) -> Table:
    """One row per verdict; passed tests are left out unless all are requested."""
    table = output.table("NODE", "TEST", "PART", "VERDICT", ">MEASURED", ">BASELINE", ">OF", "WHY", "WHAT TO DO")
    for v in doc["verdicts"]:
        if v["grade"] == "pass" and not everything and len(doc["nodes"]) > 1:
            continue
        grade = v["grade"]
        table.add_row(
            output.text(v["node"]),
            output.text(f"{v['check']} {v['metric']}".strip()),
            output.text(v["component"]),
            f"[{_GRADE_STYLES.get(grade, 'default')}]{output.text(grade)}[/]",
            output.text(quantity(v["value"], v["unit"])),
            output.text(quantity(v["baseline"] if v["baseline"] is not None else v["bar"], v["unit"])),
            _basis(v),
            output.text(v["text"]),
            output.text(v["action"]),
        )
    return table


def _basis(verdict: output.Json) -> str:
    """The number of values behind the baseline's median, and the time of the first."""
    if not verdict["baseline_n"]:
        return "bar" if verdict["bar"] is not None else "-"
    since = output.clock(verdict["baseline_since"]).partition(" ")[0] if verdict["baseline_since"] else ""
    return f"{verdict['baseline_n']}" + (f" since {since}" if since else "")


def quantity(value: float | None, unit: str) -> str:
    """A figure with its unit, in three digits or so."""
    if value is None:
        return "-"
    match unit:
        case "bytes/s":
            return f"{output.size(value)}/s"
        case "FLOP/s":
            return f"{value / 1e9:,.1f} GFLOP/s"
        case "ratio":
            return f"{value:.2%}"
        case "s":
            return f"{value * 1e3:,.3g} ms"
    return f"{value:,.4g} {unit}".strip()


def _conclusion(doc: output.Json) -> str:
    took = output.seconds((doc["ended"] or 0.0) - (doc["began"] or 0.0))
    rounds = f", {doc['rounds']} rounds of pairs" if doc["rounds"] else ""
    count = len(doc["nodes"])
    bad = ", ".join(doc["failed"])
    said = f"failed: {bad}" if bad else f"{len(doc['cleared'])} of {count} nodes have nothing wrong, none failed"
    return f"{said} ({took}{rounds})"
