"""Prometheus' own files: what to scrape, and the rules in its YAML."""

from typing import Any

import yaml

from holdfast.dashboards.rules import ALERTS, RECORDINGS

RUNBOOK = "alerts.md"


def rules(docs_url: str) -> str:
    """`docs_url`: where people read `docs/`; each alert links to its entry there."""
    recorded = [{"record": rule.name, "expr": rule.expr} for rule in RECORDINGS]
    alerts: list[dict[str, Any]] = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": alert.wait,
            "labels": {"severity": alert.severity},
            "annotations": {
                "summary": alert.summary,
                "description": alert.means,
                "runbook_url": f"{docs_url.rstrip('/')}/{RUNBOOK}#{alert.name.lower()}",
            },
        }
        for alert in ALERTS
    ]
    groups = [{"name": "holdfast.recordings", "rules": recorded}, {"name": "holdfast.alerts", "rules": alerts}]
    return dump({"groups": groups})


def config(controllers: list[str], alertmanagers: list[str]) -> str:
    """`HOST:PORT` of each. Relative file names are seen from this file."""
    return dump(
        {
            "global": {"scrape_interval": "10s", "evaluation_interval": "10s"},
            "rule_files": ["holdfast-rules.yml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": alertmanagers}]}]},
            "scrape_configs": [
                {"job_name": "holdfast", "honor_labels": True, "static_configs": [{"targets": controllers}]}
            ],
        }
    )


def dump(value: Any) -> str:
    """YAML in the order in which it was written."""
    return str(yaml.safe_dump(value, sort_keys=False, width=120, allow_unicode=True))
