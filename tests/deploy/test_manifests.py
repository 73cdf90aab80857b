"""What lies in deploy/ is what the API takes, and what the code asks for is what the roles allow."""

import contextlib
import datetime
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from holdfast.base import private
from holdfast.base.certs import write_cluster
from holdfast.base.config.agent import AgentConfig
from holdfast.base.config.controller import ControllerConfig

DEPLOY = Path(__file__).parents[2] / "deploy"
BASE = DEPLOY / "kubernetes" / "base"
MANIFESTS = [*sorted(BASE.glob("*.yml")), DEPLOY / "monitoring" / "kubernetes.yml"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_the_api_takes_each_document(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    assert documents
    for document in documents:
        kubernetes_validate.validate(document, "1.30", strict=True)


def named(kind: str, name: str) -> Any:
    documents = [document for path in BASE.glob("*.yml") for document in yaml.safe_load_all(path.read_text())]
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


def pod_of(kind: str, name: str) -> Any:
    return named(kind, name)["spec"]["template"]["spec"]


def flags_of(pod: Any) -> dict[str, str]:
    args = [arg for arg in pod["containers"][0]["args"] if arg.startswith("--")]
    return {name.removeprefix("--"): value for name, _, value in (arg.partition("=") for arg in args)}


PODS = [("Deployment", "holdfast-controller", ControllerConfig), ("DaemonSet", "holdfast-agent", AgentConfig)]


@pytest.mark.parametrize(("kind", "name", "config"), PODS)
def test_the_flags_exist(kind: str, name: str, config: type) -> None:
    known = {name.replace("_", "-") for name in config.__dataclass_fields__}  # type: ignore[attr-defined]
    assert flags_of(pod_of(kind, name)).keys() <= known


# --- users and privileges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name", "config"), PODS)
def test_a_pod_that_stays_is_no_root_and_gains_no_rights(kind: str, name: str, config: type) -> None:
    """What the "restricted" level of pod security asks for, but for volumes of the host."""
    pod = pod_of(kind, name)
    whole = pod["securityContext"]
    assert whole["runAsNonRoot"] is True
    assert whole["runAsUser"] == whole["runAsGroup"] == whole["fsGroup"] > 1000
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    for host in ("hostNetwork", "hostPID", "hostIPC"):
        assert host not in pod
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert not own.get("privileged")
        assert not {"runAsUser", "runAsNonRoot"} & own.keys()


def user_of(kind: str, name: str) -> int:
    return int(pod_of(kind, name)["securityContext"]["runAsUser"])


def test_agents_are_another_user_than_the_controller() -> None:
    """Both may be on one host, and workers are the agent's user."""
    assert user_of("DaemonSet", "holdfast-agent") != user_of("Deployment", "holdfast-controller")


def certificate_pod() -> Any:
    return yaml.safe_load((DEPLOY / "kubernetes" / "node-certificate.yml").read_text())


def test_the_copying_pod_has_what_it_needs_to_give_a_file_away_and_no_more() -> None:
    [container] = certificate_pod()["spec"]["containers"]
    own = container["securityContext"]
    assert own["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"]}
    assert own["allowPrivilegeEscalation"] is False
    agent = user_of("DaemonSet", "holdfast-agent")
    assert container["command"][-1].count(f"-o {agent} -g {agent} ") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="takes other users' parts")
@pytest.mark.parametrize(("kind", "name", "config"), PODS)
def test_the_state_folder_can_be_used_by_the_pods_user(kind: str, name: str, config: type) -> None:
    """On a volume as the kubelet makes it: owned by root, and for all (emptyDir) or for the pod's group."""
    user, folder = user_of(kind, name), Path(flags_of(pod_of(kind, name))["state-dir"])
    volumes = {one["name"]: one for one in pod_of(kind, name)["volumes"]}
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        volume = Path(place) / "state"
        volume.mkdir()
        os.chown(volume, 0, user)
        os.chmod(volume, 0o2777 if "emptyDir" in volumes["state"] else 0o2775)
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                os.setgroups([user])
                os.setgid(user)
                os.setuid(user)
                private.state_folder(volume / folder.relative_to("/state"))
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- which pod has which secret -----------------------------------------------------------------------------------


def test_a_pod_in_which_training_code_runs_has_its_nodes_certificate_only() -> None:
    agent = pod_of("DaemonSet", "holdfast-agent")
    volumes = {volume["name"]: volume for volume in agent["volumes"]}
    assert not [name for name, volume in volumes.items() if "secret" in volume or "projected" in volume]
    assert volumes["certs"]["hostPath"] == {"path": "/etc/holdfast/node", "type": "Directory"}
    assert not agent["automountServiceAccountToken"]
    for container in (*agent["containers"], *agent.get("initContainers", [])):
        assert "envFrom" not in container
        assert not [one for one in container["env"] if "secretKeyRef" in one.get("valueFrom", {})]
        mounts = [mount for mount in container["volumeMounts"] if mount["name"] == "certs"]
        assert all(mount["readOnly"] for mount in mounts)


def test_the_files_that_pods_name_are_those_of_their_role(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    write_cluster(tmp_path, ["holdfast-controller.holdfast.svc"], ["gpu-1"], now)
    for kind, name, folder in (
        ("Deployment", "holdfast-controller", tmp_path / "controller"),
        ("DaemonSet", "holdfast-agent", tmp_path / "nodes" / "gpu-1"),
    ):
        asked = {Path(value).name for value in flags_of(pod_of(kind, name)).values() if value.startswith("/certs/")}
        assert asked == {path.name for path in folder.iterdir()}
    [secret] = [one["secret"] for one in pod_of("Deployment", "holdfast-controller")["volumes"] if "secret" in one]
    assert secret["secretName"] == "holdfast-controller"
    commands = (
        (DEPLOY / "kubernetes" / "overlays" / "gpu" / "kustomization.yaml").read_text().partition("apiVersion")[0]
    )
    assert "create secret generic holdfast-controller --from-file=certs/controller\n" in commands


KUBECTL = """#!/bin/bash
echo "$*" >> "$CALLS/calls"
case "$*" in
    "create -f -") cat > "$CALLS/pod-$(grep -c '^create -f' "$CALLS/calls").yml" ;;
    *"wait "*"$FAILS"*) [ -z "$FAILS" ] ;;
esac
"""


def install(tmp_path: Path, *nodes: str, fails: str = "") -> tuple[int, list[str]]:
    """Run the script with a stand-in for kubectl; its exit code and what it called."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kubectl").write_text(KUBECTL)
    (tmp_path / "bin" / "kubectl").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "CALLS": str(tmp_path), "FAILS": fails}
    script = DEPLOY / "kubernetes" / "node-certificates.sh"
    done = subprocess.run(["bash", str(script), str(tmp_path / "certs"), *nodes], env=env, timeout=30, check=False)
    return done.returncode, (tmp_path / "calls").read_text().splitlines()


def test_each_node_gets_its_own_certificate_and_the_secrets_go_again(tmp_path: Path) -> None:
    nodes = ["gpu-1", "gpu-2.example"]
    write_cluster(tmp_path / "certs", [], nodes, datetime.datetime.now(datetime.UTC))
    code, calls = install(tmp_path)
    assert code == 0
    made = [call for call in calls if "create secret" in call]
    assert made == [
        f"-n holdfast create secret generic holdfast-node-{node} --from-file={tmp_path}/certs/nodes/{node}"
        for node in nodes
    ]
    for number, node in enumerate(nodes, 1):
        pod = yaml.safe_load((tmp_path / f"pod-{number}.yml").read_text())
        kubernetes_validate.validate(pod, "1.30", strict=True)
        assert pod["spec"]["nodeName"] == node
        secrets = [volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume]
        assert secrets == [f"holdfast-node-{node}"]
        [target] = [volume["hostPath"]["path"] for volume in pod["spec"]["volumes"] if "hostPath" in volume]
        agent = {volume["name"]: volume for volume in pod_of("DaemonSet", "holdfast-agent")["volumes"]}
        assert target == agent["certs"]["hostPath"]["path"]
        [last] = [call for call in calls if "delete" in call and f"secret/holdfast-node-{node}" in call][-1:]
        assert calls.index(last) > calls.index(made[number - 1])


def test_a_node_that_does_not_answer_leaves_no_secret_behind(tmp_path: Path) -> None:
    write_cluster(tmp_path / "certs", [], ["gpu-1", "gpu-2"], datetime.datetime.now(datetime.UTC))
    code, calls = install(tmp_path, "gpu-2", fails="gpu-2")
    assert code != 0
    assert not [call for call in calls if "gpu-1" in call]
    assert "delete" in calls[-1]
    assert "secret/holdfast-node-gpu-2" in calls[-1]


def test_the_copy_has_the_modes_that_a_key_needs(tmp_path: Path) -> None:
    """The pod's own command, with its two folders here."""
    write_cluster(tmp_path / "certs", [], ["gpu-1"], datetime.datetime.now(datetime.UTC))
    [container] = certificate_pod()["spec"]["containers"]
    agent, ours = user_of("DaemonSet", "holdfast-agent"), f"-o {os.geteuid()} -g {os.getegid()}"
    words = [word.replace("/certificate/", f"{tmp_path}/certs/nodes/gpu-1/").replace(" /node", f" {tmp_path}/node")
             .replace(f"-o {agent} -g {agent}", ours) for word in container["command"]]  # fmt: skip
    for _ in range(2):  # and again, after the certificate was renewed
        subprocess.run(words, check=True)
        assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "node").iterdir()} == {
            "ca.pem": 0o600, "node.pem": 0o600, "node-key.pem": 0o600,
        }  # fmt: skip
        assert (tmp_path / "node").stat().st_mode & 0o777 == 0o700
