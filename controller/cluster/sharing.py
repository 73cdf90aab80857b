"""Which nodes jobs share: those that were submitted as sharing, with one another, as far as memory goes. Pure.

The admission is the planner's (`planner.sharing.admission`); here nodes become slots. A node has room for a job if the
memory that each of its jobs may use on a device, the most of each added up, is there: libraries keep what a worker has
once used, so what one job leaves between its turns is not free for another.
"""

import math
from collections.abc import Mapping, Sequence

from holdfast.controller.state.model import Job, Node
from holdfast.planner.sharing.admission import shared_slots
from holdfast.planner.sharing.jobs import SharedJob
from holdfast.planner.sharing.state import Resident, SlotState

MOST = 4
"""Jobs on a node. Each that joins makes the iterations of all others longer."""


def memory_of_worker(node: Node) -> float:
    """Bytes for the workers of one device: of the smallest GPU, or an equal part of the host's for each slot. Infinite
    where the agent does not know."""
    gpus = [gpu.memory_bytes for gpu in node.identity.gpus]
    if gpus:
        return min(gpus) or math.inf
    return node.identity.memory_bytes / max(1, node.identity.slots) or math.inf


def fits_alone(job: Job, node: Node) -> bool:
    """True of any job that does not share: what it needs is not known."""
    return job.spec.share_bytes <= memory_of_worker(node) if job.spec.share_bytes else True


def may_join(job: Job, node: Node, residents: Sequence[Job]) -> bool:
    """May the job start on a node that these others hold?"""
    if not residents:
        return fits_alone(job, node)
    if not job.spec.share_bytes or not all(one.spec.share_bytes for one in residents) or len(residents) >= MOST:
        return False
    return job.spec.share_bytes + sum(one.spec.share_bytes for one in residents) <= memory_of_worker(node)


def choose_shared(job: Job, nodes: Sequence[Node], residents: Mapping[str, Sequence[Job]]) -> list[Node]:
    """Nodes of others for a job that begins, at the largest of its sizes for which there is room; none: no room.

    `nodes`: those that it may be placed on; empty ones among them are left alone. Nodes that were never evicted first.
    """
    fit = [node for node in nodes if node.usable and node.identity.slots >= job.spec.nproc]
    sound = [node for node in fit if not node.history.evicted]
    for offered in (sound, fit):
        held = [node for node in offered if residents.get(node.name)]
        for count in sorted(job.spec.counts, reverse=True):
            if count <= len(held) and (chosen := _chosen(job, count, held, residents)):
                return chosen
    return []


def _chosen(job: Job, count: int, nodes: Sequence[Node], residents: Mapping[str, Sequence[Job]]) -> list[Node]:
    memory = max(memory_of_worker(node) for node in nodes)
    slots = [
        SlotState(i, lacks_bytes=0.0 if math.isinf(memory) else memory - memory_of_worker(node))
        for i, node in enumerate(nodes)
    ]
    jobs = {one.spec.id: one for node in nodes for one in residents[node.name]}
    for number, (id, one) in enumerate(jobs.items()):
        places = tuple(i for i, node in enumerate(nodes) if any(other is one for other in residents[node.name]))
        resident = Resident(_as_shared(one, len(places)), number, places)
        assert resident.job.name == id
        for i in places:
            slots[i].residents.append(resident)
    return [nodes[i] for i in shared_slots(_as_shared(job, count), slots, memory, most=MOST)]


def _as_shared(job: Job, roles: int) -> SharedJob:
    """For admission: only its memory counts, all of it held from beginning to end."""
    return SharedJob(job.spec.id, roles, 1.0, 0.0, 1, states_bytes=float(job.spec.share_bytes))
