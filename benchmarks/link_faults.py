"""Faults of the network between hosts: which detector finds each, how soon, and what each says where nothing is wrong.

python benchmarks/link_faults.py [--seeds 5] [--seconds 300] [--nodes 8] [--gpus 4] [--only slow-nic ...] [--json]

A simulated job trains on `--nodes` hosts of a made-up CLOS network in virtual time, and the controller's own code reads
its frames. Each fault comes at a random host, `--seeds` times, and the controller has `--seconds` to find it.
`by hand`: signals as detectors' tests made them, without a network: the host of the fault moves 0.4 of its bytes, the
counters of its NIC grow, and no other host and no step notices. `flows`: from the flow-level network
(controller/simulation/fabric).

A cell is `found of seeds (median seconds until it was)`; `elsewhere` counts findings at hosts where nothing is wrong.
Then the same detectors in honest events: how many findings there were in all seeds, and how often anything was done.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from common import Json, finish, parser, table

from holdfast.controller.simulation.fabric.conditions import Conditions
from holdfast.controller.simulation.fabric.faults import LinkFault
from holdfast.controller.simulation.fabric.honest import Honest
from holdfast.controller.simulation.fabric.layout import Layout
from holdfast.controller.simulation.fabric.links import Links
from holdfast.controller.simulation.fabric.solved import Solved, solve
from holdfast.controller.simulation.fabric.trials import Trial, trial
from holdfast.controller.simulation.hosts import ClusterShape
from holdfast.wire.types import FindingKind as K

DETECTORS = (
    K.TRAFFIC_STOPPED, K.TRAFFIC_DECLINE, K.TRAFFIC_UNSTEADY, K.TRAFFIC_ONE_SIDED, K.TRAFFIC_UNPLANNED, K.LINK_DOWN,
    K.LINK_FLAP, K.NETWORK_ERRORS, K.NETWORK_CONGESTION, K.STEP_TIME_JUMP, K.WORKER_HANG,
)  # fmt: skip
_MOVES, _CNPS_PER_S, _ERRORS_PER_S = 0.4, 20_000.0, 100.0


class ByHand(Links):
    """The host of the fault, as its detectors' tests show it."""

    def solve(self, layout: Layout, conditions: Conditions) -> Solved:
        calm = solve(layout, Conditions())
        if conditions == Conditions():
            return calm
        cut = solve(layout, conditions).cut_off
        own = layout.nics_of(self.numbers[self.focus[0]])
        sums, messages = calm.sums.copy(), calm.messages.copy()
        sums[:, own] *= _MOVES
        messages[:, own] *= _MOVES
        counted = {name: grown.copy() for name, grown in calm.counted.items()}
        for name in ("symbol_error", "out_of_sequence") if conditions.lossy else ("np_cnp_sent",):
            per_s = _ERRORS_PER_S if conditions.lossy else _CNPS_PER_S
            counted[name][own[0]] += per_s * layout.calm_s
        return replace(calm, sums=sums, messages=messages, counted=counted, cut_off=cut)


def found_in(trials: Iterable[Trial], kind: K) -> dict[str, object]:
    """`times`: of the trials that found it at the host of the fault or for the job. `elsewhere`: findings at others."""
    times, elsewhere = [], 0
    for one in trials:
        hits = [f for f in one.found if f.kind is kind and f.after_s >= 0]
        own = [f.after_s for f in hits if f.subject in ("job", "sim") or f.subject.split("/")[0] == one.host]
        elsewhere += len(hits) - len(own)
        times += [min(own)] if own else []
    return {"times": times, "elsewhere": elsewhere}


def shown(found: dict[str, object], seeds: int) -> str:
    times, elsewhere = found["times"], found["elsewhere"]
    assert isinstance(times, list)
    text = f"{len(times)} of {seeds} ({median(times):.0f} s)" if times else "-"
    return f"{text}, elsewhere {elsewhere}" if elsewhere else text


def ran(event: LinkFault | Honest, options: argparse.Namespace, links: type[Links], seconds: float) -> list[Trial]:
    shape = ClusterShape(options.nodes, max(2, options.nodes // 2), options.gpus, 3, step=2.0)  # rings cross uplinks
    found = [trial(event, seed, shape, seconds, links) for seed in range(options.seeds)]
    print(f"{event} {links.__name__}: {time.process_time():.0f} s of processor time so far", file=sys.stderr)
    return found


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--seeds", type=int, default=5)
    made.add_argument("--seconds", type=float, default=300.0, help="after a fault")
    made.add_argument("--honest-seconds", type=float, default=120.0, help="after an honest event")
    made.add_argument("--nodes", type=int, default=8)
    made.add_argument("--gpus", type=int, default=4)
    names = {str(event).replace(" ", "-").lower(): event for event in (*LinkFault, *Honest)}
    made.add_argument("--only", nargs="*", choices=list(names), default=list(names))
    options = made.parse_args()
    if min(options.seeds, options.seconds, options.honest_seconds, options.gpus) <= 0 or options.nodes < 2:
        made.error("--seeds, --seconds and --gpus must be above 0, --nodes 2 or more")
    begun = time.process_time()
    faults: Json = {}
    rows: list[list[object]] = []
    for name in options.only:
        if not isinstance(event := names[name], LinkFault):
            continue
        trials = {"by hand": ran(event, options, ByHand, options.seconds),
                  "flows": ran(event, options, Links, options.seconds)}  # fmt: skip
        faults[name] = {how: {kind.value: found_in(some, kind) for kind in DETECTORS} for how, some in trials.items()}
        for how, some in trials.items():
            anything = sum(any(f.after_s >= 0 for f in one.found) for one in some)
            faults[name][how]["anything"] = anything
            faults[name][how]["step_s"] = median(one.step_s for one in some)
            faults[name][how]["acted"] = sum(bool(one.acted) for one in some)
        for kind in DETECTORS:
            cells = [shown(faults[name][how][kind.value], options.seeds) for how in trials]
            if cells != ["-", "-"]:
                rows.append([name, kind.value, *cells])
        seen = [f"{faults[name][how]['anything']} of {options.seeds}" for how in trials]
        rows.append([name, "any", *seen])
        rows.append([name, "(restarted)", *(str(faults[name][how]["acted"]) for how in trials)])
    honest: Json = {}
    for name in options.only:
        if isinstance(event := names[name], Honest):
            some = ran(event, options, Links, options.honest_seconds)
            said = sum((one.said for one in some), Counter[str]())
            honest[name] = {"said": dict(said), "acted": sum(bool(one.acted) for one in some)}
    result: Json = {"faults": faults, "honest": honest, "seeds": options.seeds, "cpu_s": time.process_time() - begun}
    finish(result, options.json, ("fault", "detector", "by hand", "flows"), rows)
    if not options.json:
        lines = [[name, ", ".join(f"{kind} {n}" for kind, n in one["said"].items()) or "-", one["acted"]]
                 for name, one in honest.items()]  # fmt: skip
        table(("honest event", "findings", "acted"), lines)
        print(f"{result['cpu_s']:.0f} s of processor time")


if __name__ == "__main__":
    main()
