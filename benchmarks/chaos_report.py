"""The table of `chaos.py`. Pure: results in, rows and totals out."""

from collections.abc import Sequence
from statistics import median

from common import Json, finish

HEAD = ("fault", "n", "found", "culprit", "rung", "goes on", "losses", "detect, s", "(max)", "recover, s", "(max)")


def compared(result: Json, others: Sequence[Json]) -> Json:
    """The result with its losses against those of other runs of the same plan, calm ones and such with other faults, as
    far as they went: in all, and of each injection the steps from its strike to the next one."""
    losses = _by_step(result)
    both: set[int] = set()
    wrong: set[int] = set()
    for other in (_by_step(one) for one in others if one is not result):
        shared = losses.keys() & other.keys()
        both |= shared
        wrong |= {step for step in shared if losses[step] != other[step]}
    strikes = [one["first_step"] for one in result["injections"]]
    injections = []
    for one in result["injections"]:
        until = min((step for step in strikes if step > one["first_step"]), default=max(losses, default=0) + 1)
        steps = both & set(range(one["first_step"], until))
        injections.append(one | {"is_loss_equal": not wrong & steps if steps else None})
    counts = {"steps": len(losses), "steps_compared": len(both), "steps_differing": len(wrong)}
    return {**result, "injections": injections, **counts}


def _by_step(result: Json) -> dict[int, float]:
    return {int(step): loss for step, loss in result["losses"].items()}


def merge(parts: Sequence[Json]) -> Json:
    """Portions of one campaign as one."""
    numbers = ("quiet_s", "steps", "steps_compared", "steps_differing")
    return {
        **{name: [one for part in parts for one in part[name]] for name in ("injections", "false_alarms")},
        **{name: sum(part[name] for part in parts) for name in numbers},
    }


def totals(result: Json) -> Json:
    all_of = result["injections"]
    right = sum(one["is_found"] and one["is_culprit_right"] for one in all_of)
    wrong = sum(len(one["extra"]) for one in all_of) + len(result["false_alarms"])
    return {
        "injections": len(all_of),
        "kinds": len({one["kind"] for one in all_of}),
        "recall": right / len(all_of) if all_of else None,
        "precision": right / (right + wrong) if right + wrong else None,
        "rung_right": sum(one["is_rung_right"] for one in all_of),
        "resumed": sum(one["is_resumed"] for one in all_of),
        "wrong_evictions": sum(len(one["wrongly_evicted"]) for one in all_of),
        "extra_incidents": sum(len(one["extra"]) for one in all_of),
        "false_alarms": len(result["false_alarms"]),
        **{name: result[name] for name in ("quiet_s", "steps", "steps_compared", "steps_differing")},
    }


def rows(injections: Sequence[Json]) -> list[tuple[object, ...]]:
    """A row a kind, in the order in which they first came."""
    found: list[tuple[object, ...]] = []
    for kind in dict.fromkeys(one["kind"] for one in injections):
        mine = [one for one in injections if one["kind"] == kind]
        compared = [one["is_loss_equal"] for one in mine if one["is_loss_equal"] is not None]
        counts = [sum(bool(one[name]) for one in mine)
                  for name in ("is_found", "is_culprit_right", "is_rung_right", "is_resumed")]  # fmt: skip
        times = [cell for name in ("detect_s", "recover_s") for cell in _spread([one[name] for one in mine])]
        found.append((kind, len(mine), *counts, f"{sum(compared)}/{len(compared)}" if compared else "-", *times))
    return found


def _spread(values: Sequence[float | None]) -> tuple[object, object]:
    known = [value for value in values if value is not None]
    return (f"{median(known):.2f}", f"{max(known):.2f}") if known else ("-", "-")


def report(result: Json, as_json: bool) -> None:
    sums = totals(result)
    detect = [one["detect_s"] for one in result["injections"] if one["detect_s"] is not None]
    table = [*rows(result["injections"]), *((name, value, *[""] * (len(HEAD) - 2)) for name, value in sums.items())]
    raw = {name: value for name, value in result.items() if name != "losses"}
    finish({"totals": sums, "medians_s": {"holdfast": median(detect) if detect else None}, **raw}, as_json, HEAD, table)
    if not as_json:
        for one in result["injections"]:
            odd = {name: one.get(name) for name in ("extra", "wrongly_evicted", "unprotected") if one.get(name)}
            if odd:
                print(f"{one['kind']} at {one['place']}: {odd}")
        for text in result["false_alarms"]:
            print(f"false alarm: {text}")
