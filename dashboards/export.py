"""All files of the monitoring stack, by path."""

from dataclasses import dataclass
from pathlib import Path

from holdfast.dashboards import alertmanager, grafana, prometheus, stack


@dataclass(frozen=True, slots=True)
class Places:
    """Where the parts find each other, `HOST:PORT` or URL."""

    controller: str = "host.docker.internal:7080"
    alertmanager: str = "alertmanager:9093"
    prometheus: str = "http://prometheus:9090"
    webhook: str = "http://host.docker.internal:9099/"
    docs_url: str = "docs"


def files(places: Places) -> dict[str, str]:
    """Path to text; `compose.yml` and `kubernetes.yml` refer to the others."""
    made = {
        "prometheus/prometheus.yml": prometheus.config([places.controller], [places.alertmanager]),
        "prometheus/holdfast-rules.yml": prometheus.rules(places.docs_url),
        "alertmanager/alertmanager.yml": alertmanager.config(places.webhook),
        "grafana/provisioning/datasources/holdfast.yml": stack.datasource(places.prometheus),
        "grafana/provisioning/dashboards/holdfast.yml": stack.providers(),
        **{f"grafana/dashboards/{name}": text for name, text in grafana.files().items()},
    }
    return {"compose.yml": stack.compose(), **made, "kubernetes.yml": stack.kubernetes(_for_kubernetes(places, made))}


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
        "prometheus/prometheus.yml": prometheus.config([controller], [manager]),
        "grafana/provisioning/datasources/holdfast.yml": stack.datasource(url),
    }
