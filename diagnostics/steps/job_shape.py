"""What must be known of a job to read its spans: which ranks ran where, and what they do in every step."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

from holdfast.base.errors import ProtocolError
from holdfast.plan.plan import Plan
from holdfast.wire.plans import decode_plan


@dataclass(frozen=True, slots=True)
class JobShape:
    """`nodes` by number of node, each with `nproc` ranks in a row; `plan` as published, empty without one."""

    job: str = ""
    name: str = ""
    nodes: tuple[str, ...] = ()
    nproc: int = 1
    plan: bytes = b""

    def node_of(self, rank: int) -> str:
        """Empty where it is not known."""
        index = rank // max(self.nproc, 1)
        return self.nodes[index] if index < len(self.nodes) else ""

    def decoded(self) -> Plan | None:
        """The plan, if there is one that this version can read."""
        try:
            return decode_plan(self.plan) if self.plan else None
        except ProtocolError:
            return None

    def to_json(self) -> str:
        return json.dumps(
            {"job": self.job, "name": self.name, "nodes": self.nodes, "nproc": self.nproc,
             "plan": base64.b64encode(self.plan).decode()}
        )  # fmt: skip

    @classmethod
    def from_json(cls, text: str) -> JobShape:
        """ProtocolError for what `to_json` did not write."""
        try:
            doc = json.loads(text)
            return cls(doc["job"], doc["name"], tuple(doc["nodes"]), int(doc["nproc"]), base64.b64decode(doc["plan"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"no description of a job: {error!r}") from None
