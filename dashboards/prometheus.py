"""Prometheus' own files: what to scrape, and the rules in its YAML."""

from dataclasses import dataclass
from typing import Any

import yaml

from holdfast.dashboards.rules import ALERTS, CHECKPOINT_MINUTES, RECORDINGS, SCRAPE_JOB, no_checkpoint

RUNBOOK = "alerts.md"


@dataclass(frozen=True, slots=True)
class Scrape:
    """How the controller is scraped. `tls_ca`: its authority's certificate, whose presence means HTTPS; `token_file`:
    an API token. Both are paths on Prometheus' machine."""

    job: str = SCRAPE_JOB
    tls_ca: str = ""
    token_file: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(one for one in (self.tls_ca, self.token_file) if one)


def rules(docs_url: str, scrape_job: str = SCRAPE_JOB, checkpoint_minutes: int = CHECKPOINT_MINUTES) -> str:
    """`docs_url`: where people read `docs/`; each alert links to its entry there. `scrape_job`: as in `Scrape`."""
    own = no_checkpoint(checkpoint_minutes)
    recorded = [{"record": rule.name, "expr": rule.expr} for rule in RECORDINGS]
    alerts: list[dict[str, Any]] = [
        {
            "alert": alert.name,
            "expr": alert.expr.replace(f'up{{job="{SCRAPE_JOB}"}}', f'up{{job="{scrape_job}"}}'),
            "for": alert.wait,
            "labels": {"severity": alert.severity},
            "annotations": {
                "summary": alert.summary,
                "description": alert.means,
                "runbook_url": f"{docs_url.rstrip('/')}/{RUNBOOK}#{alert.name.lower()}",
            },
        }
        for alert in (own if one.name == own.name else one for one in ALERTS)
    ]
    groups = [{"name": "holdfast.recordings", "rules": recorded}, {"name": "holdfast.alerts", "rules": alerts}]
    return dump({"groups": groups})


def config(controller: str, alertmanager: str, scrape: Scrape) -> str:
    """`HOST:PORT` of each. Relative file names are seen from this file."""
    reach: dict[str, Any] = {}
    if scrape.tls_ca:
        reach |= {"scheme": "https", "tls_config": {"ca_file": scrape.tls_ca}}
    if scrape.token_file:
        reach["authorization"] = {"type": "Bearer", "credentials_file": scrape.token_file}
    targets = [{"targets": [controller]}]
    return dump(
        {
            "global": {"scrape_interval": "10s", "evaluation_interval": "10s"},
            "rule_files": ["holdfast-rules.yml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
            "scrape_configs": [{"job_name": scrape.job, "honor_labels": True, **reach, "static_configs": targets}],
        }
    )


def dump(value: Any) -> str:
    """YAML in the order in which it was written."""
    return str(yaml.safe_dump(value, sort_keys=False, width=120, allow_unicode=True))
