"""Senders that meet at one NIC of a rack, packet by packet; and what a simulated packet costs.

python benchmarks/packets.py [--senders 8 32 62] [--slots 30000] [--apart 0] [--seed 1] [--json]

200 Gbit/s NICs, packets of 4,096 bytes and 82 of headers, marks from 100 to 400 kB, pauses above 80 kB of one ingress,
an empty round trip of 8 us. `goodput`: what left the NIC, as a share of what headers leave. Goodput, queues, fairness
and `victim` (what a flow from the first sender to an idle NIC gets of its own) are of the second half, pauses of all.

Cost, in processor time: hosts in a ring, each sends to the next at the line's rate; and one incast without control.
"""

from __future__ import annotations

import resource
import time

from common import finish, parser

from holdfast.base.errors import UsageError
from holdfast.planner.packets.incast import CONTROLS, incasts
from holdfast.planner.packets.rack import ENDLESS, Flows, Rack
from holdfast.planner.packets.simulation import Simulation

RINGS = (8, 32, 128)
COST_SLOTS = 3000


def cost(flows: Flows, hosts: int) -> dict[str, float]:
    """Of a slot and of a packet that arrives, once the pipes are full."""
    made = Simulation(Rack(hosts, buffer=1e6), flows, CONTROLS["none"])
    made.run(500)
    began, before = time.process_time(), made.receivers.arrived
    made.run(COST_SLOTS)
    took = time.process_time() - began
    return {"slot_us": took / COST_SLOTS * 1e6, "packets_per_s": (made.receivers.arrived - before) / took}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--senders", type=int, nargs="+", default=[8, 32, 62])
    made.add_argument("--slots", type=int, default=30_000)
    made.add_argument("--apart", type=int, default=0, help="slots from the beginning of one sender to that of the next")
    made.add_argument("--seed", type=int, default=1)
    options = made.parse_args()
    if options.apart < 0 or options.seed < 0:
        made.error("--apart and --seed must be 0 or more")
    try:
        found = {n: incasts(n, options.slots, seed=options.seed, apart=options.apart) for n in options.senders}
    except UsageError as error:
        made.error(str(error))
    costs = {f"ring of {n}": cost(Flows.of(*[(i, (i + 1) % n, ENDLESS) for i in range(n)]), n) for n in RINGS}
    costs["32 to 1"] = cost(Flows.of(*[(i, 32, ENDLESS) for i in range(32)]), 33)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    head = ["case", "goodput %", "pauses", "longest kB", "mean kB", "fairness", "victim %", "us a slot", "packets/s"]
    rows: list[list[object]] = [
        [f"{n} to 1, {name}", 100 * one.outcome.goodput, one.outcome.pauses, one.outcome.longest_queue / 1e3,
         one.outcome.mean_queue / 1e3, one.outcome.fairness, 100 * one.victim, "", ""]
        for n, meetings in found.items()
        for name, one in meetings.items()
    ]  # fmt: skip
    rows += [[name, *[""] * 6, one["slot_us"], one["packets_per_s"]] for name, one in costs.items()]
    result = {
        "goodputs": {str(n): {name: one.outcome.goodput for name, one in all_.items()} for n, all_ in found.items()},
        "pauses": {str(n): {name: one.outcome.pauses for name, one in all_.items()} for n, all_ in found.items()},
        "costs": costs,
        "resident_mb": memory,
    }
    finish(result, options.json, head, rows)
    if not options.json:
        print(f"{memory:.0f} MB resident at most")


if __name__ == "__main__":
    main()
