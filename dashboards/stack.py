"""Prometheus, Alertmanager and Grafana with everything provisioned: as a compose file, and for Kubernetes."""

from typing import Any

import yaml

from holdfast.dashboards.prometheus import dump

IMAGES = {
    "prometheus": "prom/prometheus:v3.1.0",
    "alertmanager": "prom/alertmanager:v0.28.0",
    "grafana": "grafana/grafana:11.4.0",
}
SECRET = "holdfast-prometheus-access"
"""The Kubernetes Secret with the controller's authority and the API token; not written here, since it is one."""
_PORTS = {"prometheus": 9090, "alertmanager": 9093, "grafana": 3000}
_MOUNTS = {
    "prometheus": (("prometheus", "/etc/prometheus"),),
    "alertmanager": (("alertmanager", "/etc/alertmanager"),),
    "grafana": (
        ("grafana/provisioning", "/etc/grafana/provisioning"),
        ("grafana/dashboards", "/var/lib/grafana/dashboards"),
    ),
}


def datasource(url: str) -> str:
    """Grafana's provisioning file of its one source of data."""
    source = {"name": "Holdfast", "type": "prometheus", "uid": "holdfast", "url": url, "isDefault": True}
    return dump({"apiVersion": 1, "datasources": [source | {"access": "proxy", "jsonData": {"timeInterval": "10s"}}]})


def providers() -> str:
    """Grafana's provisioning file that says where the dashboards lie."""
    provider = {"name": "Holdfast", "folder": "Holdfast", "type": "file", "allowUiUpdates": False}
    return dump({"apiVersion": 1, "providers": [provider | {"options": {"path": "/var/lib/grafana/dashboards"}}]})


def compose(secrets: tuple[str, ...] = ()) -> str:
    """Listens on loopback; the controller is one on this host. `secrets`: files of this host that Prometheus reads."""
    services: dict[str, Any] = {}
    for name, image in IMAGES.items():
        services[name] = {
            "image": image,
            "ports": [f"127.0.0.1:{_PORTS[name]}:{_PORTS[name]}"],
            "volumes": [f"./{here}:{there}:ro" for here, there in _MOUNTS[name]],
            "extra_hosts": ["host.docker.internal:host-gateway"],
            "restart": "unless-stopped",
        }
    services["prometheus"]["volumes"] += [f"{path}:{path}:ro" for path in secrets]
    services["grafana"]["environment"] = {"GF_AUTH_ANONYMOUS_ENABLED": "true", "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer"}
    services["grafana"]["depends_on"] = ["prometheus"]
    return dump({"services": services})


def kubernetes(files: dict[str, str], secrets: tuple[str, ...] = ()) -> str:
    """The same as Deployments, with their files in ConfigMaps. `files`: path to text. `secrets`: files that Prometheus
    reads, by their last name in the Secret."""
    documents: list[dict[str, Any]] = []
    for name in IMAGES:
        volumes: list[dict[str, Any]] = []
        mounts: list[dict[str, Any]] = []
        for here, there in _MOUNTS[name]:
            for folder in sorted({path.rpartition("/")[0] for path in files if path.startswith(f"{here}/")}):
                label = f"holdfast-{folder}".replace("/", "-")
                data = {
                    path.rpartition("/")[2]: text for path, text in files.items() if path.rpartition("/")[0] == folder
                }
                documents.append(_object("v1", "ConfigMap", label, {"data": data}))
                volumes.append({"name": label, "configMap": {"name": label}})
                mounts.append({"name": label, "mountPath": there + folder.removeprefix(here), "readOnly": True})
        if name == "prometheus" and secrets:
            volumes.append({"name": SECRET, "secret": {"secretName": SECRET}})
            mounts += [
                {"name": SECRET, "mountPath": path, "subPath": path.rpartition("/")[2], "readOnly": True}
                for path in secrets
            ]
        documents += [_deployment(name, volumes, mounts), _service(name)]
    return "---\n".join(dump(document) for document in documents)


def _object(version: str, kind: str, name: str, rest: dict[str, Any]) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "holdfast"}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels}} | rest


def _deployment(name: str, volumes: list[dict[str, Any]], mounts: list[dict[str, Any]]) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": name,
        "image": IMAGES[name],
        "ports": [{"containerPort": _PORTS[name]}],
        "volumeMounts": mounts,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {"securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "fsGroup": 65534}, "containers": [container]}
    labels = {"app.kubernetes.io/name": f"holdfast-{name}"}
    template = {"metadata": {"labels": labels}, "spec": pod | {"volumes": volumes}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return _object("apps/v1", "Deployment", f"holdfast-{name}", {"spec": spec})


def _service(name: str) -> dict[str, Any]:
    port = {"port": _PORTS[name], "targetPort": _PORTS[name]}
    spec = {"selector": {"app.kubernetes.io/name": f"holdfast-{name}"}, "ports": [port]}
    return _object("v1", "Service", f"holdfast-{name}", {"spec": spec})


def documents(text: str) -> list[Any]:
    """The parts of a file of several YAML documents."""
    return list(yaml.safe_load_all(text))
