"""What must hold in a cluster in virtual time after every event."""

from typing import TYPE_CHECKING

from holdfast.controller.state.model import JobSpec
from tests.controller.support.virtual_agents import FakeAgent

if TYPE_CHECKING:
    from tests.controller.support.virtual import Virtual


def check(v: "Virtual") -> None:
    """AssertionError for what does not hold."""
    generations: set[tuple[str, int]] = set()
    for agent in v.agents.values():
        if not agent.alive:
            continue  # workers behind a lost agent cannot join: their store and their peers are gone
        held = {(w.job, w.generation) for w in agent.workers.values() if w.running}
        jobs = {job for job, _ in held}
        _check_sharing(agent, [v.specs[job] for job in sorted(jobs)])
        generations |= held
    assert len(generations) == len({job for job, _ in generations}), f"two generations train at once: {generations}"
    live = [i.job for i in v.incidents if i.live]
    assert len(live) == len(set(live))
    for brain in v.brain.jobs.active():
        job = brain.c.job
        if job.generation and brain.c.life.stage.value == "up":
            assert len(set(job.nodes)) == len(job.nodes) in job.spec.counts
    on: dict[str, list[JobSpec]] = {}
    for brain in v.brain.jobs.active():
        for name in brain.c.job.nodes:
            on.setdefault(name, []).append(brain.c.job.spec)
    for name, specs in on.items():
        _check_sharing(v.agents[name], specs)
    if v.on_check is not None:
        v.on_check(on)


def _check_sharing(agent: FakeAgent, specs: list[JobSpec]) -> None:
    """One job, or several that share, within the memory of the host's part for each slot."""
    names = [spec.id for spec in specs]
    assert len(specs) <= 1 or all(spec.share_bytes for spec in specs), f"{agent.name} belongs to {names}"
    if len(specs) > 1 and agent.memory_bytes:
        used = sum(spec.share_bytes for spec in specs) * agent.slots
        assert used <= agent.memory_bytes, f"{agent.name} has {agent.memory_bytes} bytes, {names} use {used}"
