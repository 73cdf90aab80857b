"""All files of the monitoring stack, by path."""

from dataclasses import dataclass, field
from pathlib import Path

from holdfast.dashboards import alertmanager, grafana, prometheus, stack
from holdfast.dashboards.prometheus import Scrape
from holdfast.dashboards.rules import CHECKPOINT_MINUTES


@dataclass(frozen=True, slots=True)
class Places:
    """Where the parts find each other, `HOST:PORT` or URL, and what is theirs to choose. Files are named as Prometheus
    sees them."""

    controller: str = "host.docker.internal:7080"
    alertmanager: str = "alertmanager:9093"
    prometheus: str = "http://prometheus:9090"
    webhook: str = "http://host.docker.internal:9099/"
    docs_url: str = "docs"
    page_url: str = ""
    """Address of Holdfast's own page, for links; empty: none."""
    scrape: Scrape = field(default_factory=Scrape)
    job: str = ""
    """The job that the dashboards show first; empty: the first by name."""
    checkpoint_minutes: int = CHECKPOINT_MINUTES


def files(places: Places) -> dict[str, str]:
    """Path to text; `compose.yml` and `kubernetes.yml` refer to the others."""
    made = {
        "prometheus/prometheus.yml": prometheus.config(places.controller, places.alertmanager, places.scrape),
        "prometheus/holdfast-rules.yml": prometheus.rules(
            places.docs_url, places.scrape.job, places.checkpoint_minutes
        ),
        "alertmanager/alertmanager.yml": alertmanager.config(places.webhook),
        "grafana/provisioning/datasources/holdfast.yml": stack.datasource(places.prometheus),
        "grafana/provisioning/dashboards/holdfast.yml": stack.providers(),
        **{f"grafana/dashboards/{name}": text for name, text in grafana.files(places.page_url, places.job).items()},
    }
    return {
        "compose.yml": stack.compose(places.scrape.files),
        **made,
        "kubernetes.yml": stack.kubernetes(_for_kubernetes(places, made), places.scrape.files),
    }


def write(folder: Path, places: Places) -> list[Path]:
    """Writes them all; a file of the same name is overwritten, others are left alone. OSError when it can't."""
    written = []
    for name, text in files(places).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        written.append(path)
    return written


def _for_kubernetes(places: Places, made: dict[str, str]) -> dict[str, str]:
    """Services have other names there; what was set by hand stays."""
    default = Places()
    controller = "holdfast-controller:7080" if places.controller == default.controller else places.controller
    manager = "holdfast-alertmanager:9093" if places.alertmanager == default.alertmanager else places.alertmanager
    url = "http://holdfast-prometheus:9090" if places.prometheus == default.prometheus else places.prometheus
    return made | {
        "prometheus/prometheus.yml": prometheus.config(controller, manager, places.scrape),
        "grafana/provisioning/datasources/holdfast.yml": stack.datasource(url),
    }
