"""What is kept of a job once a minute, and whenever its condition changes: enough to say later how it was then."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
EVERY_S = 60.0
_MOST_NODES = 200
_FIGURES = (
    "state",
    "reason",
    "step",
    "max_steps",
    "tokens_per_s",
    "step_seconds",
    "loss",
    "mfu",
    "restarts",
    "generation",
)
_OF_HEALTH = ("condition", "sentence", "since", "action", "needs_person", "doing", "usual_s", "rank", "target")


def moment(job: Json, useful: float, stored: int | None, spares: int, doubtful: Mapping[str, str]) -> Json:
    """The document of a moment. `job`: `models.Job` with its health; `useful`: seconds in steps that count, so far;
    `stored`: the newest step that no fault can take, None where none is stored; `doubtful`: state of each node of the
    cluster that is neither healthy nor a spare."""
    health, risk = job["health"], job["at_risk"] or {}
    worker, of_job = risk.get("worker"), risk.get("job")
    return {
        **{name: job[name] for name in _FIGURES},
        "goodput": job["time"]["last_day"],
        "queued_s": job["time"]["queued"],
        "useful_s": useful,
        "stored": stored,
        "at_risk": of_job if worker is None else worker,
        "spares": spares,
        "nnodes": job["nnodes"],
        "world_size": job["world_size"],
        "doubtful": dict(sorted(doubtful.items())[:_MOST_NODES]),
        "doubtful_many": len(doubtful),
        "health": {name: health[name] for name in _OF_HEALTH}
        | {"others": [{name: one[name] for name in _OF_HEALTH} for one in health["others"]]},
    }


def is_worth_keeping(last: tuple[float, Json] | None, at: float, doc: Json) -> bool:
    """Whether this moment says more than the last that was kept: (Unix seconds, document)."""
    if last is None or at - last[0] >= EVERY_S or at < last[0]:
        return True
    return _signature(last[1]) != _signature(doc)


def _signature(doc: Json) -> tuple[Any, ...]:
    health = doc["health"]
    return doc["state"], doc["generation"], health["condition"], health["rank"], health["target"], doc["doubtful"]
