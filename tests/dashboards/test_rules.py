import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_cases import CASES

from holdfast.dashboards import prometheus
from holdfast.dashboards.rules import ALERTS, RECORDINGS
from tests.command_tree import command_tree

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")


def promtool(folder: Path, *args: str) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *args], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_and_no_case_lacks_its_alert() -> None:
    assert set(CASES) == {alert.name for alert in ALERTS}


def test_every_alert_has_series_for_firing_and_for_staying_quiet() -> None:
    """Both are of metrics that its rule reads: a quiet case without them would be quiet for any rule."""
    recorded = {rule.name: rule.expr for rule in RECORDINGS}
    for alert in ALERTS:
        read, found = alert.expr, list[str]()
        while found != (found := re.findall(r"\b(?:[a-z]+:)?(?:holdfast_\w+|up)(?::\w+)?", read)):
            for name in found:
                read = read.replace(name, recorded.get(name, name))
        case = CASES[alert.name]
        assert case.fires != case.quiet, alert.name
        for series in (case.fires, case.quiet):
            assert {name.partition("{")[0] for name in series} & set(found), alert.name


def test_no_recording_is_for_nothing() -> None:
    read = [rule.expr for rule in (*ALERTS, *RECORDINGS)]
    assert [rule.name for rule in RECORDINGS if not any(rule.name in expr for expr in read)] == []


def test_an_alert_names_commands_that_exist() -> None:
    root = command_tree()
    for alert in ALERTS:
        for words in re.findall(r"`holdfast ([^`]+)`", f"{alert.means} {alert.do}"):
            command: Any = root
            for word in words.split():
                if word in (below := getattr(command, "commands", {})):
                    command = below[word]
                elif word.startswith("--"):
                    options = {option for parameter in command.params for option in parameter.opts}
                    assert word in options, f"{alert.name}: {words}"
            assert command is not root, f"{alert.name}: {words}"


def test_state_of_a_job_is_the_controllers_judgement() -> None:
    assert [alert.name for alert in ALERTS if "holdfast_job_state" in alert.expr] == []


def test_names_are_one_of_a_kind() -> None:
    names = [rule.name for rule in (*ALERTS, *RECORDINGS)]
    assert len(names) == len(set(names))


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    (tmp_path / "rules.yml").write_text(prometheus.rules("https://docs.example/"))
    return tmp_path


@needs_promtool
def test_promtool_takes_the_rules(rules: Path) -> None:
    promtool(rules, "check", "rules", "--lint=all", "--lint-fatal", "rules.yml")


def other(series: dict[str, str]) -> dict[str, str]:
    """The same of a job `b`."""
    return {name.replace('job="a"', 'job="b"'): values for name, values in series.items()}


def check(rules: Path, tests: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Those of each alert with the recordings and the rule of that alert alone: promtool evaluates every rule of a file
    once a minute in each test."""
    recordings, alerts = (group["rules"] for group in yaml.safe_load((rules / "rules.yml").read_text())["groups"])
    for rule in alerts:
        if (name := rule["alert"]) not in tests:
            continue
        # Annotations are compared too where labels are; their text is not what is tested here.
        own = {key: value for key, value in rule.items() if key != "annotations"}
        groups = [{"name": "recordings", "rules": recordings}, {"name": "alert", "rules": [own]}]
        (rules / f"{name}.rules.yml").write_text(json.dumps({"groups": groups}))
        text = {"rule_files": [f"{name}.rules.yml"], "evaluation_interval": "1m", "tests": tests[name]}
        (rules / f"{name}.yml").write_text(json.dumps(text))
    promtool(rules, "test", "rules", *(f"{name}.yml" for name in tests))


def as_test(name: str, alert: str, at: str, series: dict[str, str], expected: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "alert_rule_test": [
            {"alertname": alert, "eval_time": at, "exp_alerts": [{"exp_labels": labels} for labels in expected]}
        ],
    }


@needs_promtool
def test_one_jobs_trouble_is_not_anothers(rules: Path) -> None:
    """Job `a` has what fires and `b` the near miss, then the other way round, then both have what fires."""
    tests: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for alert in ALERTS:
        case = CASES[alert.name]
        if dict(case.labels).get("job") != "a":
            continue
        a = {"severity": alert.severity, **dict(case.labels)}
        b = a | {"job": "b"}
        for name, series, expected in (
            ("a", case.fires | other(case.quiet), [a]),
            ("b", case.quiet | other(case.fires), [b]),
            ("both", case.fires | other(case.fires), [a, b]),
        ):
            tests[alert.name].append(as_test(f"{alert.name}: {name}", alert.name, case.at, series, expected))
    assert len(tests) >= 10
    check(rules, tests)


@needs_promtool
def test_each_alert_fires_when_it_should_and_only_then(rules: Path) -> None:
    tests: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for alert in ALERTS:
        case = CASES[alert.name]
        for series, fires in ((case.fires, True), (case.quiet, False)):
            labels = {"severity": alert.severity, **dict(case.labels)}
            name = f"{alert.name}: {'fires' if fires else 'quiet'}"
            tests[alert.name].append(as_test(name, alert.name, case.at, series, [labels] if fires else []))
    check(rules, tests)
