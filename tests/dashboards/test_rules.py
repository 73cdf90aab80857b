import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from alert_cases import CASES

from holdfast.dashboards import prometheus
from holdfast.dashboards.rules import ALERTS, RECORDINGS

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")


def promtool(folder: Path, *args: str) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *args], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_and_no_case_lacks_its_alert() -> None:
    assert set(CASES) == {alert.name for alert in ALERTS}


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


@needs_promtool
def test_each_alert_fires_when_it_should_and_only_then(rules: Path) -> None:
    tests = []
    for alert in ALERTS:
        case = CASES[alert.name]
        for series, fires in ((case.fires, True), (case.quiet, False)):
            labels = {"severity": alert.severity, **dict(case.labels)}
            tests.append(
                {
                    "name": f"{alert.name}: {'fires' if fires else 'quiet'}",
                    "interval": "1m",
                    "input_series": [{"series": name, "values": values} for name, values in series.items()],
                    "alert_rule_test": [
                        {
                            "alertname": alert.name,
                            "eval_time": case.at,
                            "exp_alerts": [{"exp_labels": labels}] if fires else [],
                        }
                    ],
                }
            )
    # Annotations are compared too where labels are; their text is not what is tested here.
    bare = yaml.safe_load((rules / "rules.yml").read_text())
    for rule in bare["groups"][1]["rules"]:
        del rule["annotations"]
    (rules / "bare.yml").write_text(yaml.safe_dump(bare))
    (rules / "tests.yml").write_text(
        yaml.safe_dump({"rule_files": ["bare.yml"], "evaluation_interval": "1m", "tests": tests})
    )
    promtool(rules, "test", "rules", "tests.yml")
