"""Writes the parts of the documentation that are tables of the code: `make docs`, or `--check` to only compare.

The output of the function NAME below is written between `<!-- generated: NAME -->` and `<!-- end -->` in a page; manual
edits there are overwritten. The rest of a page is written manually.
"""

import ast
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from holdfast.agent.logs import rules as log_rules
from holdfast.base import settings
from holdfast.base.config.load import SECTIONS
from holdfast.cli.job.launch.environment import LEFT_OUT
from holdfast.cli.job.launch.torchrun_options import TABLE as TORCHRUN
from holdfast.controller.detectors.base import table as detector_table
from holdfast.controller.detectors.base.moves import Fault, Move
from holdfast.controller.http.notifications.runbook import RUNBOOK
from holdfast.controller.job import policy
from holdfast.controller.job.stages import TRANSITIONS, Stage, StageEvent
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Options
from holdfast.dashboards.rules import ALERTS
from holdfast.diagnostics.catalog.catalog import CHECKS, Scope, Suite
from holdfast.facts import xid
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.settings import config as trainer
from holdfast.trainer.settings.load import choices
from holdfast.trainer.settings.optimizers import OPTIMIZERS
from holdfast.wire import types as t

sys.path.insert(0, str(Path(__file__).parent))  # the module beside this one, however this one is loaded
import cli_reference
import metrics_table
import schedule_choice
import techniques_table
from markdown_table import table
from runbook_page import to_html

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def member_texts(enum: type[StrEnum]) -> dict[str, str]:
    """The texts under the members."""
    body = ast.parse(textwrap.dedent(inspect.getsource(enum))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = [" ".join(inspect.cleandoc(s.value.value).split()) for s in body.body if _is_text(s)]
    return dict(zip(enum, texts[-len(enum) :], strict=True))


def findings_readme() -> str:
    """Kind, first sentence of its meaning and first action, for the README."""
    rows = []
    for kind, row in detector_table.rows().items():
        means = re.split(r"(?<=\.)\s", row.means)[0]
        rows.append((f"[`{kind}`](docs/runbook.md#{kind})", means, str(row.first_move)))
    return table(("finding", "meaning", "action"), rows)


def runbook() -> str:
    """An entry for every kind of finding."""
    entries = []
    for kind, row in detector_table.rows().items():
        bullets = [f"- **Holdfast** {row.does}", f"- **You**: {row.you}"]
        if row.limits:
            bullets.append(f"- **Limits**: [the table](detectors.md#the-table); `[controller.detectors.{kind}]`.")
        filled = [textwrap.fill(b, 118, subsequent_indent="  ", break_on_hyphens=False) for b in bullets]
        means = textwrap.fill(row.means, 118, break_on_hyphens=False)
        entries.append(f"### {kind}\n\n{means}\n\n" + "\n".join(filled))
    return "\n\n".join(entries) + "\n"


def detectors() -> str:
    """Every kind with its severity, its suspect, and its limits."""
    rows = []
    for kind, row in detector_table.rows().items():
        limits = "<br>".join(f"`{name}` = {limit.default:g}: {limit.text}" for name, limit in row.limits.items())
        name = f"[`{kind}`](runbook.md#{kind})" + ("" if not row.fixed else " (fixed)")
        rows.append((name, str(row.severity), str(row.suspect), limits))
    return table(("kind", "severity", "suspect", "limits and their defaults"), rows)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def findings() -> str:
    """Kind, first action, where the fault is, and the restart attempts without progress until the job is failed."""
    rows = []
    for kind, row in detector_table.rows().items():
        move = row.first_move
        ends = move in policy.RECOVERS
        cause = Finding(kind, t.Severity.CRITICAL, "", "", 0.0, 0.0)
        tries = str(policy.Case(cause, Options()).limit) if ends else ""
        rows.append((f"[`{kind}`](#{kind})", f"`{move}`", str(row.fault) if ends else "", tries))
    parts = [table(("kind", "first action", "fault of", "restart attempts"), rows)]
    parts += ["", *(f"- {fault}: {text}" for fault, text in member_texts(Fault).items())]
    parts += ["", *(f"- `{move}`: {text}" for move, text in member_texts(Move).items())]
    return "\n".join(parts)


def rules_of_policy() -> str:
    """The rules that replace the first action, in order."""
    rows = [(str(i + 1), rule.when, f"`{rule.move}`") for i, rule in enumerate(policy.RULES)]
    return table(("", "when", "action"), rows)


def stages() -> str:
    """The state machine of a job's generation: a diagram, and what its events mean."""
    lines = ["stateDiagram-v2", f"    [*] --> {Stage.IDLE}"]
    lines += [f"    {before} --> {after}: {event}" for (before, event), after in TRANSITIONS.items()]
    texts = [f"- `{name}`: {text}" for enum in (Stage, StageEvent) for name, text in member_texts(enum).items()]
    return "\n".join(["```mermaid", *lines, "```", "", *texts])


# --- settings --------------------------------------------------------------------------------------------------


def _section(cls: type[Any], name: str, with_variable: bool) -> str:
    docs = settings.field_docs(cls)
    hints = typing.get_type_hints(cls)
    rows = []
    for entry in fields(cls):
        cells = [f"`{entry.name}`"]
        if with_variable:
            cells.append(f"`{settings.variable(name, entry.name)}`")
        words = [f"`{word}`" for word in choices(hints[entry.name], entry)]
        text = docs.get(entry.name, "") + (f" One of {', '.join(words)}." if words else "")
        rows.append((*cells, _default(entry), text.strip()))
    head = ("key", "environment", "default", "meaning") if with_variable else ("key", "default", "meaning")
    return f"#### `[{name}]`\n\n" + table(head, rows)


def _default(entry: Any) -> str:
    value = entry.default
    if value is None or value == "" or not isinstance(value, str | int | float | bool | tuple | Path):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(value)}`" if value else ""
    return f"`{value:.10g}`" if isinstance(value, float) else f"`{value}`"


def configuration() -> str:
    return "\n\n".join(_section(cls, name, True) for name, cls in SECTIONS.items())


def trainer_configuration() -> str:
    hints = typing.get_type_hints(trainer.Config)
    return "\n\n".join(_section(hints[entry.name], entry.name, False) for entry in fields(trainer.Config))


def schedules() -> str:
    """The requirements of each pipeline schedule on the layout."""
    rows = []
    for one in SCHEDULES.values():
        chunks = f"{one.chunks}, or as `parallel.chunks` says" if one.takes_chunks else str(one.chunks)
        asks = ["pp of 2 or more"] * (one.chunks > 1) + ["micro-batches that fill whole rounds"] * one.whole_rounds
        asks += ["as many micro-batches as stages"] * one.fills_stages
        backward = "in two halves" if one.halves_backward else "whole"
        rows.append((f"`{one.name}`", chunks, one.placement.value if one.chunks > 1 else "", backward, "; ".join(asks)))
    return table(("schedule", "stages per rank", "placement", "backward", "needs"), rows)


def optimizers() -> str:
    """What there is to choose for optim.name, and when."""
    rows = []
    for one in OPTIMIZERS.values():
        needs = "`tp = 1`; over replicas `zero = 0`; one pipe" if one.whole else ""
        rows.append((f"`{one.name}`", one.when, needs, "yes" if one.elementwise else ""))
    return table(("optimizer", "when", "needs", "`state = host`"), rows)


def choice_of_schedule() -> str:
    """When to choose which schedule, with figures of the simulator."""
    head, *rows = schedule_choice.rows()
    return table(head, rows)


# --- log rules -------------------------------------------------------------------------------------------------


def rules() -> str:
    rows = [
        (f"`{rule.name}`", rule.kind, str(rule.severity), "host" if rule.host else "worker", "yes" * rule.secondary)
        for rule in log_rules.load().all
    ]
    return table(("rule", "kind", "severity", "where", "victim"), rows)


# --- alerts ----------------------------------------------------------------------------------------------------


def alerts() -> str:
    """A table of all alerts, then an entry for each."""
    parts = [
        table(
            ("alert", "severity", "after"), [(f"[`{a.name}`](#{a.name.lower()})", a.severity, a.wait) for a in ALERTS]
        )
    ]
    for alert in ALERTS:
        entry = f"### {alert.name}\n\n{alert.means}\n\n- **You**: {alert.do}\n- **Rule**: `{alert.expr}`"
        parts.append(entry if alert.wait == "0m" else f"{entry}, for {alert.wait}")
    return "\n\n".join(parts)


def xids() -> str:
    """NVIDIA's catalogue, codes of one meaning in one row."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for entry in xid.entries():
        groups.setdefault((str(entry.action), str(entry.fault), entry.meaning), []).append(entry.code)
    rows = [(", ".join(map(str, codes)), meaning, action, fault) for (action, fault, meaning), codes in groups.items()]
    return table(("code", "meaning", "immediate action", "fault of"), rows)


# --- diagnostics -----------------------------------------------------------------------------------------------


def checks() -> str:
    """The catalog: what each test measures and what its figures are held against."""
    rows = []
    for check in CHECKS:
        suites = "quick, full" if check.suite is Suite.QUICK else "full"
        where = {Scope.NODE: "a node alone", Scope.PAIR: "two nodes", Scope.NEIGHBOURS: "nodes under one switch"}
        figures = "; ".join(_limits(metric) for metric in check.metrics) or "facts, no figures"
        rows.append((f"`{check.name}`", suites, where[check.scope], check.does, check.needs, figures))
    return table(("test", "suites", "runs on", "what it does", "needs", "figures and limits"), rows)


def torchrun_environment() -> str:
    """Variables of the submitting shell that workers do not get."""
    rows = ((reason, ", ".join(f"`{one}`" for one in patterns)) for reason, patterns in LEFT_OUT.items())
    return table(("why", "variables"), rows)


def torchrun_options() -> str:
    """What `holdfast run` does with each of torchrun's options."""
    rows = []
    for name, option in TORCHRUN.items():
        text = option.text
        if option.harmless:
            text += f"; {', '.join(f'`{value}`' for value in option.harmless)} is accepted"
        rows.append((f"`{name}`", str(option.kind), text))
    return table(("option", "with Holdfast", "what it does, or why not"), rows)


def _limits(metric: Any) -> str:
    """Name, unit, then the bar and the shares of the peers' median."""
    said = []
    if metric.bar == metric.bar:
        said.append(f"{'below' if metric.is_more_better else 'above'} {metric.bar:g}: {metric.bar_grade}")
    for grade in ("degraded", "fail"):
        share = getattr(metric, grade)
        if share == share:
            said.append(f"under {share:.0%} of the peers': {grade}")
    return f"`{metric.name}` ({metric.unit}): {', '.join(said)}"


# --- pages -----------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], str]] = {
    "findings": findings,
    "findings-readme": findings_readme,
    "runbook": runbook,
    "detectors": detectors,
    "policy-rules": rules_of_policy,
    "stages": stages,
    "config": configuration,
    "trainer-config": trainer_configuration,
    "schedules": schedules,
    "optimizers": optimizers,
    "schedule-choice": choice_of_schedule,
    "techniques": techniques_table.table,
    "metrics": metrics_table.metrics,
    "cli": cli_reference.commands,
    "exit-codes": cli_reference.exit_codes,
    "log-rules": rules,
    "checks": checks,
    "alerts": alerts,
    "xids": xids,
    "torchrun-environment": torchrun_environment,
    "torchrun-options": torchrun_options,
}


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def rendered(path: Path) -> str:
    """The page with its generated parts as the code is now. KeyError for an unknown part."""

    def fresh(match: re.Match[str]) -> str:
        return f"{match[1]}{PARTS[match['name']]()}\n{match[3]}"

    return BLOCK.sub(fresh, path.read_text())


def served() -> str:
    """The page that the controller serves at `/runbook`."""
    return to_html({name: rendered(ROOT / "docs" / name) for name in ("runbook.md", "alerts.md")})


def main(argv: list[str]) -> int:
    fresh = {page: rendered(page) for page in pages()} | {RUNBOOK: served()}
    fresh[schedule_choice.PICTURE] = schedule_choice.picture()
    stale = {page: text for page, text in fresh.items() if not page.exists() or page.read_text() != text}
    for page, text in stale.items():
        print(f"{'stale' if '--check' in argv else 'written'}: {page.relative_to(ROOT)}")
        if "--check" not in argv:
            page.write_text(text)
    return 1 if stale and "--check" in argv else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
