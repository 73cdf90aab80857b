"""The official client against an API server of ours: real calls and bodies, checked by the API's own schema."""

import asyncio
import http.server
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
from kubernetes import client

from holdfast.base.errors import Unavailable
from holdfast.controller.schedulers.base import Out
from holdfast.controller.schedulers.kubernetes import REASON, TAINT, Kubernetes

VERSION = "1.30"


class ApiServer:
    """Nodes and pods by name. Merge patches as the API has them; what it stores must fit the API's schema."""

    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}
        self.pods: dict[str, Any] = {}
        self.requests: list[str] = []
        self.budget_spent = False
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.get(self)

            def do_PATCH(self) -> None:
                api.patch(self)

            def do_POST(self) -> None:
                api.post(self)

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def get(self, request: Any) -> None:
        path, _, query = request.path.partition("?")
        self.requests.append(f"GET {path}")
        if path == "/api/v1/nodes":
            answer(request, 200, {"kind": "NodeList", "apiVersion": "v1", "items": list(self.nodes.values())})
        elif match := re.fullmatch(r"/api/v1/nodes/(\S+)", path):
            found = self.nodes.get(match[1])
            answer(request, 200 if found else 404, found or {"message": f'nodes "{match[1]}" not found'})
        else:
            assert path == "/api/v1/namespaces/holdfast/pods"
            node = re.search(r"fieldSelector=spec.nodeName%3D(\w+)", query)
            assert node is not None
            assert "labelSelector=app%3Dagent" in query
            items = [pod for pod in self.pods.values() if pod["spec"]["nodeName"] == node[1]]
            answer(request, 200, {"kind": "PodList", "apiVersion": "v1", "items": items})

    def patch(self, request: Any) -> None:
        assert "merge-patch" in request.headers["Content-Type"]
        self.requests.append(f"PATCH {request.path}")
        node = self.nodes[request.path.rpartition("/")[2]]
        body = read(request)
        assert body.keys() == {"metadata", "spec"}
        for key, value in body["metadata"]["annotations"].items():
            node["metadata"]["annotations"].pop(key, None)
            if value is not None:
                node["metadata"]["annotations"][key] = value
        node["spec"].update(body["spec"])  # the lists of a node's spec merge by key; we send them whole
        kubernetes_validate.validate(node, VERSION, strict=True)
        answer(request, 200, node)

    def post(self, request: Any) -> None:
        match = re.fullmatch(r"/api/v1/namespaces/holdfast/pods/(\S+)/eviction", request.path)
        assert match is not None
        self.requests.append(f"EVICT {match[1]}")
        body = read(request)
        kubernetes_validate.validate(body, VERSION, strict=True)
        if self.budget_spent:
            answer(request, 429, {"message": "Cannot evict pod as it would violate the pod's disruption budget."})
        elif self.pods.pop(match[1], None) is None:
            answer(request, 404, {"message": "not found"})
        else:
            answer(request, 201, {"kind": "Status", "apiVersion": "v1", "status": "Success"})


def read(request: Any) -> Any:
    return json.loads(request.rfile.read(int(request.headers["Content-Length"])))


def answer(request: Any, status: int, body: Any) -> None:
    text = json.dumps(body).encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(text)))
    request.end_headers()
    request.wfile.write(text)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    one = ApiServer()
    for name in ("n1", "n2"):
        one.nodes[name] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "annotations": {"theirs": "stays"}},
            "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        }
        one.pods[f"agent-{name}"] = {
            "metadata": {"name": f"agent-{name}"},
            "spec": {"nodeName": name, "containers": []},
        }
    threading.Thread(target=one.server.serve_forever, daemon=True).start()
    yield one
    one.server.shutdown()
    one.server.server_close()


@pytest.fixture
def scheduler(api: ApiServer) -> Kubernetes:
    configuration = client.Configuration(host=f"http://127.0.0.1:{api.server.server_port}")
    configuration.retries = False
    return Kubernetes("holdfast", "app=agent", client.CoreV1Api(client.ApiClient(configuration)))


def test_a_node_goes_out_with_its_agent_and_comes_in_again(api: ApiServer, scheduler: Kubernetes) -> None:
    asyncio.run(scheduler.evict(Out("n1", "three hangs within a day")))
    node = api.nodes["n1"]
    assert node["spec"]["unschedulable"] is True
    assert {taint["key"] for taint in node["spec"]["taints"]} == {"nvidia.com/gpu", TAINT}
    assert node["metadata"]["annotations"] == {"theirs": "stays", REASON: "holdfast: three hangs within a day"}
    assert list(api.pods) == ["agent-n2"]
    assert asyncio.run(scheduler.taken_out()) == {"n1"}
    asyncio.run(scheduler.evict(Out("n1", "again")))
    assert len(node["spec"]["taints"]) == 2

    asyncio.run(scheduler.let_in("n1"))
    assert node["spec"] == {"unschedulable": False, "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}
    assert node["metadata"]["annotations"] == {"theirs": "stays"}
    assert asyncio.run(scheduler.taken_out()) == set()


def test_a_node_that_it_does_not_know_is_one_line(scheduler: Kubernetes) -> None:
    with pytest.raises(Unavailable, match=r"^Kubernetes answered 404 .*n9") as caught:
        asyncio.run(scheduler.evict(Out("n9", "why")))
    assert "\n" not in str(caught.value)


def test_a_disruption_budget_is_respected_and_reported(api: ApiServer, scheduler: Kubernetes) -> None:
    api.budget_spent = True
    with pytest.raises(Unavailable, match=r"429 .*disruption budget"):
        asyncio.run(scheduler.evict(Out("n1", "why")))
    assert api.nodes["n1"]["spec"]["unschedulable"] is True
    assert "agent-n1" in api.pods


def test_a_pod_that_went_by_itself_is_no_error(api: ApiServer, scheduler: Kubernetes) -> None:
    gone = dict(api.pods)
    listed = api.get

    def get(request: Any) -> None:
        listed(request)
        if "/pods" in request.path:
            api.pods.clear()

    api.get = get  # type: ignore[method-assign]
    asyncio.run(scheduler.evict(Out("n1", "why")))
    assert gone
    assert "EVICT agent-n1" in api.requests


def test_an_api_server_that_is_away_is_one_line(api: ApiServer, scheduler: Kubernetes) -> None:
    api.server.shutdown()
    api.server.server_close()
    with pytest.raises(Unavailable, match="does not answer") as caught:
        asyncio.run(scheduler.taken_out())
    assert "\n" not in str(caught.value)
