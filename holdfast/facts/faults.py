"""Faults to inject, by name: `KIND@STEP:TARGET`, e.g. `kill@20:rank3`; without `@STEP` it strikes at once.

A rank can be struck in its next operation of a mesh axis, before or after it: `hang@20:rank3/tp`,
`stop:rank0/after-dp`. Slowness has a work and by how many percent it takes longer from then on:
`slow@20:rank3/forward+10`; +0 ends it.

A node is named, or numbered: `agent-kill@20:gpu-17`; `node1` is the node of that name, and only where there is none,
the second of the job.

The one syntax for `inject`, `demo --fault`, `run --fault` and tests. Pure: nothing is broken here.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from holdfast.base.errors import UsageError
from holdfast.base.settings import nearest, parse_whole

RANK_KINDS = ("kill", "stop", "segfault", "oom", "exception", "nan", "hang", "gil", "exit", "sigterm", "slow")
NODE_KINDS = ("agent-kill", "agent-stop", "node-kill", "xid", "log", "counter", "link-down", "disk-full")
VALUE_KINDS = {"xid": r"[0-9]{1,3}", "log": r"[\w-]+", "counter": r"\w+"}
"""Kinds that need a value, as `xid=79`: an Xid code, a log rule of the host, a counter of an RDMA port."""
CONTROLLER_KINDS = ("controller-kill",)
UNANSWERED_KINDS = ("agent-kill", "node-kill")
"""Those after which no process is left to report that it is done."""
KINDS = RANK_KINDS + NODE_KINDS + CONTROLLER_KINDS
PLACED_KINDS = ("kill", "stop", "segfault", "exception", "hang", "gil", "exit")
"""Those that can strike in an operation."""

SLOWED = ("forward", "backward", "load")
"""What `slow` can make slower; loading by so many percent of a step."""

_SHAPE = re.compile(r"(?P<kind>[^@:\s]+)(?:@(?P<step>[^:\s]*))?(?::(?P<target>\S+))?")
_NODE = re.compile(r"(?!rank[0-9]+$)[A-Za-z0-9][\w.-]{0,252}")
_TARGET = re.compile(r"(rank|node)([0-9]{1,9})(?:/((?:before-|after-)?(?:tp|dp|pp)|[a-z]+\+[0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """`step` None means now. `target` is "rank3", the name or number ("node1") of a node, or "controller"."""

    kind: str
    step: int | None
    target: str
    place: str = ""
    """In, before or after which operation of a rank: "tp", "before-tp", "after-tp"; likewise dp, pp. Of `slow` the work
    and how many percent longer it takes: "forward+10"."""

    @property
    def rank(self) -> int:
        """The rank that is meant, or -1."""
        return int(self.target[4:]) if self.target.startswith("rank") else -1

    @property
    def is_on_node(self) -> bool:
        return self.kind.partition("=")[0] in NODE_KINDS

    def node_among(self, names: Sequence[str]) -> str | None:
        """The node that is meant: the one of that name, else the one of that number; None: neither is there."""
        if self.target in names:
            return self.target
        number = self.number
        return names[number] if number is not None and number < len(names) else None

    @property
    def number(self) -> int | None:
        """Of `nodeN`; None for any other name."""
        digits = self.target.removeprefix("node")
        is_number = digits != self.target and digits.isascii() and digits.isdigit() and len(digits) < 10
        return int(digits) if is_number else None

    def __str__(self) -> str:
        at = "" if self.step is None else f"@{self.step}"
        place = f"/{self.place}" if self.place else ""
        return f"{self.kind}{at}" if self.target == "controller" else f"{self.kind}{at}:{self.target}{place}"

    @property
    def order(self) -> str:
        """What its agent, or the worker itself, is asked for: the kind, and where."""
        return f"{self.kind}/{self.place}" if self.place else self.kind


def parse_fault(text: str) -> FaultSpec:
    """UsageError says what is wrong with the text and what would be right."""
    match = _SHAPE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"not a fault: {text!r}; write KIND@STEP:rankR or KIND@STEP:nodeN, e.g. kill@20:rank3")
    kind, step, target = match["kind"], match["step"], match["target"]
    name, equals, value = kind.partition("=")
    if name not in KINDS:
        raise UsageError(f"fault {text!r}: unknown kind {name!r}{nearest(name, KINDS)}")
    if not re.fullmatch(VALUE_KINDS.get(name, ""), value) or bool(equals) != (name in VALUE_KINDS):
        example = f"{name}=79" if name == "xid" else f"{name}=NAME" if name in VALUE_KINDS else name
        raise UsageError(f"fault {text!r}: write {example}")
    if step is not None and parse_whole(step, 12) is None:
        raise UsageError(f"fault {text!r}: the step must be a whole number from 0, not {step!r}")
    target, place = _target(text, kind, target)
    return FaultSpec(kind, None if step is None else int(step), target, place)


def _target(text: str, kind: str, target: str | None) -> tuple[str, str]:
    if kind in CONTROLLER_KINDS:
        if target not in (None, "controller"):
            raise UsageError(f"fault {text!r}: {kind} takes no target")
        return "controller", ""
    match = _TARGET.fullmatch(target or "")
    if kind not in RANK_KINDS and (not match or not match[3]):  # a kind with a value is a node's
        if not _NODE.fullmatch(target or ""):
            raise UsageError(f"fault {text!r}: {kind} needs a target nodeN or a node's name, e.g. {kind}@20:node1")
        return target or "", ""
    wanted = "rank" if kind in RANK_KINDS else "node"
    if not match or match[1] != wanted:
        raise UsageError(f"fault {text!r}: {kind} needs a target {wanted}N, e.g. {kind}@20:{wanted}1")
    if kind == "slow" or "+" in (match[3] or ""):
        return f"{wanted}{int(match[2])}", _slowness(text, kind, match[3] or "")
    if match[3] and kind not in PLACED_KINDS:
        raise UsageError(f"fault {text!r}: {kind} cannot strike in an operation; {', '.join(PLACED_KINDS)} can")
    return f"{wanted}{int(match[2])}", match[3] or ""


def _slowness(text: str, kind: str, place: str) -> str:
    work, _, percent = place.partition("+")
    if kind != "slow" or work not in SLOWED or not percent or int(percent) > 1000:
        wanted = f"WORK {' or '.join(SLOWED)}, PERCENT up to 1000"
        raise UsageError(f"fault {text!r}: write slow@20:rank1/WORK+PERCENT, {wanted}")
    return f"{work}+{int(percent)}"


def check_fault(
    fault: FaultSpec, world_size: int, nnodes: int, steps: int | None = None, names: Collection[str] = ()
) -> None:
    """UsageError when the target or the step lies outside of the job. `names`: of all nodes, where they are known."""
    if fault.rank >= world_size:
        raise UsageError(f"fault {str(fault)!r}: there is no {fault.target}, ranks go from 0 to {world_size - 1}")
    if fault.is_on_node and fault.target not in names:
        number = fault.number
        if number is None and names:
            raise UsageError(f"fault {str(fault)!r}: there is no node {fault.target!r}{nearest(fault.target, names)}")
        if number is not None and number >= nnodes:
            raise UsageError(f"fault {str(fault)!r}: there is no {fault.target}, nodes go from 0 to {nnodes - 1}")
    if steps is not None and fault.step is not None and fault.step >= steps:
        raise UsageError(f"fault {str(fault)!r}: step {fault.step} never comes, steps go from 0 to {steps - 1}")


def parse_faults(
    texts: Iterable[str], world_size: int, nnodes: int, steps: int | None = None, names: Collection[str] = ()
) -> list[FaultSpec]:
    """All of them, parsed and checked, before anything is started."""
    faults = [parse_fault(text) for text in texts]
    for fault in faults:
        check_fault(fault, world_size, nnodes, steps, names)
    return faults
