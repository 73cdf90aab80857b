"""Ranks and nodes in the order of what hurts. Pure: from the controller's documents.

How late a rank is comes from the controller's last blame, which names only what stands out of the noise.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.cli.common.output import Json

LONG_S = 10.0
LONG_STEPS = 8.0
"""Without progress for longer than both, a rank counts as silent: between two steps every rank is for a moment."""
_STATES = ("done", "running", "healthy", "spare", "ended", "unknown", "joining", "cordoned", "suspect", "stalled",
           "exited", "lost", "faulty")  # fmt: skip
"""Of ranks and nodes, the worst last."""


class By(StrEnum):
    """What `holdfast top` sorts by. `hurt`: state, then lateness, lag and silence."""

    hurt = "hurt"
    late = "late"
    lag = "lag"
    silent = "silent"
    time = "time"
    gpu = "gpu"
    temperature = "temperature"
    memory = "memory"
    network = "network"
    name = "name"


@dataclass(frozen=True, slots=True)
class TopRow:
    """A rank, or a node (`rank` None) with the worst of its ranks."""

    rank: int | None
    node: str
    state: str
    doing: str = ""
    """Phase and pending operation of a rank; of a node the reason of its state."""
    ranks: int = 1
    step: int | None = None
    lag: int = 0
    """Steps behind the rank that is furthest."""
    late: float | None = None
    """Share of the step that it costs the whole job by itself; None: nothing stands out."""
    silent_s: float | None = None
    """Since the last progress; of a node, since its last heartbeat."""
    step_s: float | None = None
    gpu: float | None = None
    """Utilization, 0 to 1; of a node its least used GPU."""
    temperature: float | None = None
    memory: float | None = None
    network: float | None = None
    """Bytes per second, sent and received."""


def rank_rows(ranks: Json, blame: Json | None, nodes: Sequence[Json], job: str) -> list[TopRow]:
    """`models.Ranks`, the newest `spans.BlameBrief`, `models.Node` of each node, and the id of the job."""
    late = late_of(blame)
    known = {str(node["name"]): node for node in nodes}
    steps = ranks["step"]
    furthest = max((step for step in steps if step is not None), default=0)
    place = {
        rank: (node, i) for node in nodes if node.get("job") == job for i, rank in enumerate(node.get("ranks") or [])
    }
    rows = []
    for i, rank in enumerate(ranks["rank"]):
        name = _word(ranks, "node", "nodes", i)
        node, slot = place.get(rank, (None, 0))
        gpu = _gpu(node, slot) if node is not None and node["name"] == name else {}
        host = known.get(name, {})
        words = (_word(ranks, "phase", "phases", i), _word(ranks, "operation", "operations", i))
        rows.append(
            TopRow(
                rank=rank,
                node=name,
                state=_word(ranks, "state", "states", i),
                doing=", ".join(word for word in words if word),
                step=steps[i],
                lag=furthest - steps[i] if steps[i] is not None else 0,
                late=late.get(rank),
                silent_s=ranks["progress_age"][i],
                step_s=ranks["step_seconds"][i],
                gpu=gpu.get("utilization_ratio"),
                temperature=gpu.get("temperature_celsius"),
                memory=ranks["memory_bytes"][i],
                network=_sum(host.get("tx_bytes_per_s"), host.get("rx_bytes_per_s")),
            )
        )
    return rows


def node_rows(nodes: Sequence[Json], ranks: Iterable[TopRow], job: str) -> list[TopRow]:
    """All nodes; `ranks`: of the job with this id."""
    mine: dict[str, list[TopRow]] = {}
    for row in ranks:
        mine.setdefault(row.node, []).append(row)
    rows = []
    for node in nodes:
        own = mine.get(str(node["name"]), []) if node.get("job") == job else []
        gpus = [_gpu(node, slot) for slot in range(len(node.get("gpus") or []))]
        rows.append(
            TopRow(
                rank=None,
                node=str(node["name"]),
                state=str(node["state"]),
                doing=str(node.get("reason") or ""),
                ranks=len(node.get("ranks") or []),
                step=min((row.step for row in own if row.step is not None), default=None),
                lag=max((row.lag for row in own), default=0),
                late=max((row.late for row in own if row.late is not None), default=None),
                silent_s=node.get("frame_age"),
                step_s=max((row.step_s for row in own if row.step_s is not None), default=None),
                gpu=min(_known(gpus, "utilization_ratio"), default=None),
                temperature=max(_known(gpus, "temperature_celsius"), default=None),
                memory=max((row.memory for row in own if row.memory is not None), default=None),
                network=_sum(node.get("tx_bytes_per_s"), node.get("rx_bytes_per_s")),
            )
        )
    return rows


def ordered(rows: Iterable[TopRow], by: By) -> list[TopRow]:
    """The worst first; what is unknown last; of equals in the order that they have."""
    return sorted(rows, key=_KEYS[by])


def late_of(blame: Json | None) -> dict[int, float]:
    """By rank: its share of the step, of what the last look named. A slow link counts for both of its ends; what the
    program does by design counts for none, as in the health of the job."""
    late: dict[int, float] = {}
    if blame is None or not blame["step_s"]:
        return late
    for culprit in (one for one in blame["culprits"] if not one["by_design"]):
        for rank in (culprit["rank"], culprit["peer"]):
            if rank >= 0:
                late[rank] = max(late.get(rank, 0.0), culprit["cost_s"] / blame["step_s"])
    return late


def _hurt(row: TopRow) -> tuple[float, ...]:
    badness = _STATES.index(row.state) if row.state in _STATES else _STATES.index("unknown")
    limit = max(LONG_S, LONG_STEPS * (row.step_s or 0.0))
    silent = row.silent_s if row.silent_s is not None and row.silent_s > limit else 0.0
    # "running", "healthy" and the like are equally well: their order must not hide a late rank.
    return (-max(badness, _STATES.index("spare")), -(row.late or 0.0), -row.lag, -silent)


def _highest(value: Callable[[TopRow], float | None]) -> Callable[[TopRow], tuple[float, ...]]:
    return lambda row: (1.0, 0.0) if (found := value(row)) is None else (0.0, -found)


_KEYS: Mapping[By, Callable[[TopRow], tuple[float, ...]]] = {
    By.hurt: _hurt,
    By.late: _highest(lambda row: row.late),
    By.lag: _highest(lambda row: row.lag),
    By.silent: _highest(lambda row: row.silent_s),
    By.time: _highest(lambda row: row.step_s),
    By.gpu: _highest(lambda row: None if row.gpu is None else -row.gpu),  # the least used one first
    By.temperature: _highest(lambda row: row.temperature),
    By.memory: _highest(lambda row: row.memory),
    By.network: _highest(lambda row: row.network),
    By.name: lambda row: (),
}


def _word(ranks: Json, column: str, words: str, i: int) -> str:
    index = ranks[column][i]
    return str(ranks[words][index]) if index is not None and 0 <= index < len(ranks[words]) else ""


def _gpu(node: Json, slot: int) -> Json:
    gpus = node.get("gpus") or []
    return dict(gpus[slot].get("values") or {}) if slot < len(gpus) else {}


def _known(gpus: Iterable[Json], name: str) -> list[float]:
    return [values[name] for values in gpus if values.get(name) is not None]


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None and other is None else (one or 0.0) + (other or 0.0)
