"""Nodes and their traffic over HTTP."""

from typing import Any, Literal

from pydantic import Field

from holdfast.controller.http.models.base import Answer, Number


class Pod(Answer):
    name: str
    namespace: str
    uid: str


class Gpu(Answer):
    index: int
    uuid: str
    model: str
    pci: str
    memory_bytes: int
    values: dict[str, Number]


class Nic(Answer):
    name: str
    kind: str
    speed_bps: int
    numa_node: int
    state: str
    link_layer: str = Field(default="", description="Of an RDMA port: InfiniBand or Ethernet; empty: not known.")


class NodeBrief(Answer):
    name: str
    state: Literal["joining", "healthy", "suspect", "faulty", "cordoned", "spare", "lost"]
    reason: str | None
    connected: bool
    switch: str
    slots: int
    job: str | None = Field(description="Id of the job on the node; of several that share it, the first.")
    jobs: list[str] = Field(default=[], description="Ids of all jobs on the node.")
    ranks: list[int]
    frame_age: Number = Field(description="Seconds since its last heartbeat.")
    tx_bytes_per_s: Number
    rx_bytes_per_s: Number


class Node(NodeBrief):
    hostname: str
    ips: list[str]
    pod: Pod
    cpus: int
    memory_bytes: int
    versions: dict[str, str]
    heartbeat_interval: Number = Field(description="Seconds between its heartbeats.")
    gpus: list[Gpu]
    nics: list[Nic]
    host: dict[str, Number]


class NodeFailure(Answer):
    at: float
    kind: str = Field(description="Kind of the finding.")


class NodeHistory(Answer):
    cordoned: bool
    evicted: str = Field(description="Reason of the eviction; empty if the node is not evicted.")
    evicted_at: float
    quarantined: bool = Field(description="Quarantined: not used even if no other node is available.")
    failed_job: str = Field(description="Other jobs get it only once it has passed a diagnosis; empty: it did.")
    outs: list[tuple[float, str]] = Field(description="When it was evicted for a fault, and the job that it failed.")
    node_failures: list[NodeFailure] = Field(description="Node failures: faults of this node, oldest first.")
    verdicts: list[dict[str, Any]] = Field(description="The newest of each figure, with `at` and `diagnosis`.")


class NicTraffic(Answer):
    name: str
    t0: float = Field(description="Unix milliseconds.")
    t: list[float] = Field(description="Milliseconds since `t0`, one per sample.")
    tx: list[float] = Field(description="Bytes sent since the previous sample.")
    rx: list[float] = Field(description="Bytes received since the previous sample.")


class Traffic(Answer):
    node: str
    nics: list[NicTraffic]


BRIEF_NODE = tuple(NodeBrief.model_fields)
