"""Kubernetes, through its official client: nodes are cordoned and tainted, and the agent's pod there is evicted.

The taint is what keeps a DaemonSet's pod off, which ignores that a node is cordoned; `let_in` takes both away, and the
DaemonSet brings the pod back. A pod that is gone is replaced by its owner: on another node, once there is one.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.base.errors import Unavailable, UsageError
from holdfast.controller.schedulers.base import MARK, Out

TAINT = "holdfast.dev/out"
REASON = "holdfast.dev/reason"
"""The annotation with the reason: a taint's value may have no spaces."""
_TIMEOUT = 20.0


class Kubernetes:
    name = "kubernetes"

    def __init__(self, namespace: str, selector: str, core: Any = None) -> None:
        """`selector`: the labels of the agents' pods. `core`: a CoreV1Api, else the one of this pod or of the user.

        UsageError when there is no cluster to connect to.
        """
        self._namespace, self._selector = namespace, selector
        self._core = core if core is not None else _connect()

    async def taken_out(self) -> set[str]:
        nodes = await _ask(lambda: self._core.list_node(_request_timeout=_TIMEOUT))
        return {node.metadata.name for node in nodes.items if any(taint.key == TAINT for taint in _taints(node))}

    async def evict(self, order: Out) -> None:
        node = await _ask(lambda: self._core.read_node(order.node, _request_timeout=_TIMEOUT))
        others = [_plain(taint) for taint in _taints(node) if taint.key != TAINT]
        taints = [*others, {"key": TAINT, "value": "true", "effect": "NoSchedule"}]
        await self._patch(order.node, True, taints, f"{MARK}: {order.reason}")
        for pod in await self._pods(order.node):
            await self._evict(pod)

    async def let_in(self, node: str) -> None:
        now = await _ask(lambda: self._core.read_node(node, _request_timeout=_TIMEOUT))
        await self._patch(node, False, [_plain(taint) for taint in _taints(now) if taint.key != TAINT], None)

    async def ask_for_nodes(self, reason: str) -> bool:
        return False  # pods that cannot be placed are what an autoscaler goes by

    async def _patch(self, node: str, cordoned: bool, taints: list[dict[str, Any]], reason: str | None) -> None:
        body = {
            "metadata": {"annotations": {REASON: reason}},
            "spec": {"unschedulable": cordoned, "taints": taints},
        }
        await _ask(lambda: self._core.patch_node(node, body, _request_timeout=_TIMEOUT))

    async def _pods(self, node: str) -> list[str]:
        pods = await _ask(
            lambda: self._core.list_namespaced_pod(
                self._namespace,
                label_selector=self._selector,
                field_selector=f"spec.nodeName={node}",
                _request_timeout=_TIMEOUT,
            )
        )
        return [pod.metadata.name for pod in pods.items]

    async def _evict(self, pod: str) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": self._namespace},
        }
        await _ask(
            lambda: self._core.create_namespaced_pod_eviction(pod, self._namespace, body, _request_timeout=_TIMEOUT),
            missing_is_fine=True,
        )


def _taints(node: Any) -> list[Any]:
    return list(node.spec.taints or ())


def _plain(taint: Any) -> dict[str, Any]:
    return {key: value for key in ("key", "value", "effect") if (value := getattr(taint, key)) is not None}


def _connect() -> Any:
    try:
        from kubernetes import client, config
    except ModuleNotFoundError:
        raise UsageError("scheduler kubernetes needs its client library: pip install 'holdfast[kubernetes]'") from None
    try:
        config.load_config()  # type: ignore[no-untyped-call]  # of the pod's service account, or of the user
    except config.ConfigException as error:
        raise UsageError(f"scheduler kubernetes: no cluster is configured: {' '.join(str(error).split())}") from None
    return client.CoreV1Api()


async def _ask(call: Callable[[], Any], missing_is_fine: bool = False) -> Any:
    """The client blocks, so it runs in a thread. Unavailable with the API's own message."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        return await asyncio.to_thread(call)
    except ApiException as error:
        if missing_is_fine and error.status == 404:
            return None
        raise Unavailable(f"Kubernetes answered {error.status} {error.reason}: {_message(error)}") from None
    except (HTTPError, OSError) as error:
        raise Unavailable(f"Kubernetes does not answer: {' '.join(str(error).split())[:300]}") from None


def _message(error: Any) -> str:
    return " ".join(str(error.body or "").split())[:300]
