"""Rules for every manifest, the finished overlays included: probes, limits, privileges, secrets."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
Document = dict[str, Any]


def built(overlay: str) -> list[Document]:
    """What `kubectl apply -k` would send."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which builds overlays, is not installed")
    argv = ["kubectl", "kustomize", str(KUBERNETES / "overlays" / overlay)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def base() -> list[Document]:
    files = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())["resources"]
    return [document for name in files for document in yaml.safe_load_all((KUBERNETES / "base" / name).read_text())]


def pods(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    for document in documents:
        if document["kind"] == "Pod":
            yield document["metadata"]["name"], document["spec"]
        elif "template" in document.get("spec", {}):
            yield document["metadata"]["name"], document["spec"]["template"]["spec"]


def faults(documents: list[Document]) -> list[str]:
    """What is wrong with the pods, a line each."""
    found = []
    for name, pod in pods(documents):
        has_workers = name == "holdfast-agent"
        for container in pod["containers"]:
            own, resources = container.get("securityContext", {}), container.get("resources", {})
            if "readinessProbe" not in container:
                found.append(f"{name}: no readiness probe")
            # A restart of the agent's container ends the workers in it: the controller judges the agent.
            if ("livenessProbe" in container) == has_workers:
                found.append(f"{name}: a liveness probe where workers are, or none where none are")
            if not {"cpu", "memory"} <= resources.get("requests", {}).keys():
                found.append(f"{name}: no requests")
            # A limit of memory would end agent and workers together.
            if ("memory" in resources.get("limits", {})) == has_workers:
                found.append(f"{name}: a limit of memory where workers are, or none where none are")
            if own.get("allowPrivilegeEscalation") is not False or own.get("capabilities", {}).get("drop") != ["ALL"]:
                found.append(f"{name}: may gain privileges")
            if not has_workers and own.get("readOnlyRootFilesystem") is not True:
                found.append(f"{name}: can change its own image")
            if ":" not in container["image"] or container["image"].endswith(":latest"):
                found.append(f"{name}: an image without a version")
        whole = pod.get("securityContext", {})
        if whole.get("runAsNonRoot") is not True or whole.get("seccompProfile") != {"type": "RuntimeDefault"}:
            found.append(f"{name}: root, or without a seccomp profile")
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_keeps_the_rules_and_is_valid(overlay: str) -> None:
    documents = built(overlay)
    for document in documents:
        kubernetes_validate.validate(document, "1.30", strict=True)
    assert [name for name, _ in pods(documents)] == ["holdfast-controller", "holdfast-agent"]
    assert faults(documents) == []


def test_the_rules_notice_what_is_missing() -> None:
    documents = base()
    assert faults(documents) == [  # the base names no versions, the overlays do
        "holdfast-controller: an image without a version",
        "holdfast-agent: an image without a version",
    ]
    controller = dict(pods(documents))["holdfast-controller"]["containers"][0]
    del controller["livenessProbe"], controller["resources"]["limits"]["memory"], controller["securityContext"]
    assert len(faults(documents)) == 2 + 4


def test_the_controllers_probes_ask_an_open_path_over_its_tls() -> None:
    controller = dict(pods(base()))["holdfast-controller"]["containers"][0]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert controller[probe]["httpGet"] == {"path": "/healthz", "port": "http", "scheme": "HTTPS"}
    assert controller["startupProbe"]["periodSeconds"] * controller["startupProbe"]["failureThreshold"] >= 300


@pytest.mark.parametrize("overlay", ["gpu", "rdma"])
def test_gpus_come_with_their_overlay(overlay: str) -> None:
    agent = dict(pods(built(overlay)))["holdfast-agent"]
    assert agent["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert agent["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert "nodeSelector" not in dict(pods(built("cpu")))["holdfast-agent"]


def test_no_secret_lies_in_a_file() -> None:
    """Neither as an object with its data nor as a token in a command line or a variable."""
    clear = re.compile(r"-----BEGIN|(?:api|reader)[-_]token(?![-_]file)\s*[:=]\s*\S", re.IGNORECASE)
    for path in DEPLOY.rglob("*"):
        if "__pycache__" not in path.parts and path.is_file():  # Python writes there at any time
            assert not clear.search(path.read_text()), path
    for path in KUBERNETES.rglob("*.y*ml"):
        assert "Secret" not in [document["kind"] for document in yaml.safe_load_all(path.read_text())], path
    assert clear.search("api_token = abc")


def test_every_file_is_part_of_an_overlay_or_of_the_script() -> None:
    """A manifest that nothing names would never be applied."""
    texts = [path.read_text() for path in KUBERNETES.rglob("*") if path.name in ("kustomization.yaml",)]
    texts += [(KUBERNETES / "node-certificates.sh").read_text()]
    for path in KUBERNETES.rglob("*.yml"):
        assert any(path.name in text for text in texts), path
