"""Which agent owns a name: the one that reports, its successor, or a new one when none reports."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.shell.claims import FRESH_BEATS, FRESH_S, Claim, judge, taken_finding
from holdfast.controller.state.model import Instant
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.virtual import training

HOLDER = t.Identity("node0", "host1", "i1", boot_id="b1", address="10.0.0.1")


def claim(**changes: object) -> Claim:
    return Claim(dataclasses.replace(HOLDER, **changes), "10.9.9.9")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("newcomer", "silent", "is_taken"),
    [
        (claim(), 0.1, False),  # its stream broke, and we have not noticed yet
        (claim(incarnation="i2", predecessors=("i1",)), 0.1, False),  # its successor, by the lock
        (claim(incarnation="i9", predecessors=("i0", "i1", "i5")), 0.1, False),  # some died before their first report
        (claim(incarnation="i2"), 0.1, True),  # another state folder on the same host
        (claim(incarnation="i2", predecessors=("i0",)), 0.1, True),
        (claim(incarnation="i2", hostname="host2"), 0.1, True),
        (claim(incarnation="i2", boot_id="b2"), 0.1, True),
        (claim(incarnation="i2", address="10.0.0.2"), 0.1, True),  # a cloned container: same name, same kernel
        (claim(incarnation="i2", address="10.0.0.2", predecessors=("i1",)), 0.1, True),  # its folder cloned, too
        (claim(address="10.0.0.2"), 0.1, True),  # a machine's snapshot that was started twice
        (claim(incarnation="i2", hostname="host2"), FRESH_S + 0.1, False),
        (claim(incarnation="i2", boot_id="b2"), FRESH_S + 0.1, False),  # installed anew, or a reset that went unheard
        (claim(incarnation="i2", address="10.0.0.2"), FRESH_S + 0.1, False),
    ],
)
def test_whose_it_is(newcomer: Claim, silent: float, is_taken: bool) -> None:
    assert bool(judge(claim(), silent, 0.25, newcomer)) == is_taken


def test_in_a_big_cluster_a_holder_speaks_less_often() -> None:
    stranger = claim(incarnation="i2", hostname="host2")
    assert judge(claim(), 0.9 * FRESH_BEATS * 2.0, 2.0, stranger)
    assert not judge(claim(), 1.1 * FRESH_BEATS * 2.0, 2.0, stranger)


def test_the_refusal_says_who_has_it_and_what_to_change() -> None:
    assert judge(claim(), 0.0, 0.25, claim(incarnation="i2", hostname="host2")) == (
        "the node name 'node0' is used by an agent on host1 (10.0.0.1): give another --node-name, or end that one"
    )
    assert judge(claim(), 0.0, 0.25, claim(incarnation="i2")) == (
        "the node name 'node0' is used by an agent on this host: "
        "end one of the two, or give this one another --node-name and --state-dir"
    )


def test_the_finding_names_both_hosts() -> None:
    found = taken_finding(claim(), claim(incarnation="i2", hostname="host2", address=""), Instant(1.0, 2.0))
    assert found.text == (
        "node0 is the agent on host1 (10.0.0.1); an agent on host2 (10.9.9.9) uses the same name and is refused"
    )
    assert "a second agent there" in taken_finding(claim(), claim(incarnation="i2"), Instant(1.0, 2.0)).text


IDENTITIES = st.builds(
    lambda i, h, b, a, p: dataclasses.replace(HOLDER, incarnation=i, hostname=h, boot_id=b, address=a, predecessors=p),
    *(st.sampled_from([f"{letter}1", f"{letter}2"]) for letter in "ihba"),
    st.sets(st.sampled_from(["i1", "i2"])).map(tuple),
)


@given(IDENTITIES, IDENTITIES, st.floats(0, FRESH_S))
def test_two_that_both_speak_never_displace_each_other(one: t.Identity, other: t.Identity, silent: float) -> None:
    """What was the ping-pong: each of them takes the name from the other."""
    if one.incarnation == other.incarnation or {"i1", "i2"} <= {*one.predecessors, *other.predecessors}:
        return  # one agent; or each the other's successor, which no lock allows
    assert judge(Claim(one), silent, 0.25, Claim(other)) or judge(Claim(other), silent, 0.25, Claim(one))


def test_a_controller_that_comes_back_waits_for_the_agent_with_the_workers() -> None:
    """A clone that asks first must not make it believe that the node came back without them."""
    v = training()
    kept = tuple(msg.KeptWorker("j1", 1, rank, 0, 7, True) for rank in range(4, 8))
    for agent in v.agents.values():
        agent.alive = False  # they come back later
    v.restart_controller()
    waits = v.brain.membership.waits_for_another
    clone, right = msg.Hello(HOLDER), msg.Hello(HOLDER, kept)
    clone, right = (dataclasses.replace(h, identity=dataclasses.replace(HOLDER, node="node1")) for h in (clone, right))
    assert "waits for the agent of node1 that runs ranks of its job" in waits(clone, v.instant)
    assert not waits(right, v.instant)
    assert not waits(dataclasses.replace(clone, identity=HOLDER_OF_NOTHING), v.instant)
    v.join("node1")
    assert not waits(clone, v.instant)  # now `judge` decides which agent owns the name
    v.run(v.options.agent_grace + 1.0)
    assert not v.brain.membership.waits_for_another(dataclasses.replace(clone), v.instant)


HOLDER_OF_NOTHING = dataclasses.replace(HOLDER, node="node9")


def test_it_waits_no_longer_than_for_any_agent() -> None:
    v = training()
    for agent in v.agents.values():
        agent.alive = False
    v.restart_controller()
    clone = msg.Hello(dataclasses.replace(HOLDER, node="node1"))
    assert v.brain.membership.waits_for_another(clone, v.instant)
    v.now += v.options.agent_grace
    assert not v.brain.membership.waits_for_another(clone, v.instant)
