"""What lies in deploy/ is what the API takes, and what the code asks for is what the roles allow."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from holdfast.config import ControllerConfig

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = [DEPLOY / "kubernetes" / "holdfast.yml", DEPLOY / "monitoring" / "kubernetes.yml"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_the_api_takes_each_document(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    assert len(documents) > 3
    for document in documents:
        kubernetes_validate.validate(document, "1.30", strict=True)


def named(kind: str, name: str) -> Any:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "holdfast.yml").read_text())
    return next(d for d in documents if d["kind"] == kind and d["metadata"]["name"] == name)


def test_the_roles_allow_what_the_scheduler_does_and_no_more() -> None:
    cluster = named("ClusterRole", "holdfast-controller")["rules"]
    assert cluster == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]}]
    rules = {tuple(rule["resources"]): rule["verbs"] for rule in named("Role", "holdfast-controller")["rules"]}
    assert rules == {("pods",): ["list"], ("pods/eviction",): ["create"]}


def test_the_agents_pods_are_the_ones_that_the_controller_evicts() -> None:
    config = ControllerConfig()
    key, _, value = config.kubernetes_selector.partition("=")
    agents = named("DaemonSet", "holdfast-agent")
    assert agents["metadata"]["namespace"] == config.kubernetes_namespace
    assert agents["spec"]["template"]["metadata"]["labels"][key] == value
    assert "tolerations" not in agents["spec"]["template"]["spec"]
    assert named("Service", "holdfast-agents")["spec"]["clusterIP"] == "None"


def test_the_flags_exist() -> None:
    known = {name.replace("_", "-") for name in ControllerConfig.__dataclass_fields__}
    args = named("Deployment", "holdfast-controller")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {arg.partition("=")[0].removeprefix("--") for arg in args if arg.startswith("--")} <= known
