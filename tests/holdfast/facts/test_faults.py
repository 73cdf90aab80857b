"""The fault syntax, both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import UsageError
from holdfast.facts.faults import (
    NODE_KINDS,
    PLACED_KINDS,
    RANK_KINDS,
    VALUE_KINDS,
    FaultSpec,
    check_fault,
    parse_fault,
    parse_faults,
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill@20:rank3", FaultSpec("kill", 20, "rank3")),
        ("hang:rank0", FaultSpec("hang", None, "rank0")),
        ("agent-kill@5:node1", FaultSpec("agent-kill", 5, "node1")),
        ("controller-kill@20", FaultSpec("controller-kill", 20, "controller")),
        ("controller-kill", FaultSpec("controller-kill", None, "controller")),
        ("controller-kill@20:controller", FaultSpec("controller-kill", 20, "controller")),
        ("hang@20:rank3/tp", FaultSpec("hang", 20, "rank3", "tp")),
        ("stop:rank0/after-dp", FaultSpec("stop", None, "rank0", "after-dp")),
        ("slow@20:rank3/forward+10", FaultSpec("slow", 20, "rank3", "forward+10")),
        ("slow:rank3/load+005", FaultSpec("slow", None, "rank3", "load+5")),
        (" oom@0:rank012 ", FaultSpec("oom", 0, "rank12")),
        ("xid=79@20:node1", FaultSpec("xid=79", 20, "node1")),
        ("log=mlx5-fatal:node0", FaultSpec("log=mlx5-fatal", None, "node0")),
    ],
)
def test_parse(text: str, fault: FaultSpec) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a fault"),
        ("kill 20 rank3", "not a fault"),
        ("kil@20:rank3", "unknown kind 'kil'; did you mean kill?"),
        ("zzz:rank1", "unknown kind 'zzz'; known: agent-kill"),
        ("kill@x:rank3", "step must be a whole number"),
        ("kill@-1:rank3", "step must be a whole number"),
        ("kill@:rank3", "step must be a whole number"),
        ("kill@3", "needs a target rankN"),
        ("kill@3:node1", "needs a target rankN"),
        ("kill@3:3", "needs a target rankN"),
        ("agent-kill@3:rank1", "needs a target nodeN"),
        ("controller-kill@3:rank1", "takes no target"),
        ("hang@3:rank1/xp", "needs a target rankN"),
        ("slow@3:rank1", "write slow@20:rank1/WORK+PERCENT, WORK forward or backward or load"),
        ("slow@3:rank1/tp", "write slow@20"),
        ("slow@3:rank1/optimizer+5", "write slow@20"),
        ("slow@3:rank1/load+5000", "up to 1000"),
        ("hang@3:rank1/load+5", "write slow@20"),
        ("slow@3:node1/load+5", "needs a target rankN"),
        ("oom@3:rank1/tp", "oom cannot strike in an operation"),
        ("agent-kill:node1/tp", "agent-kill cannot strike in an operation"),
        ("xid:node1", "write xid=79"),
        ("xid=high:node1", "write xid=79"),
        ("log:node1", "write log=NAME"),
        ("kill=9:rank1", "write kill"),
        ("xid=79:rank1", "needs a target nodeN"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_fault(text)
    assert message in str(raised.value)


@given(
    kind=st.sampled_from(RANK_KINDS + NODE_KINDS),
    step=st.none() | st.integers(0, 10**9),
    number=st.integers(0, 10**6),
    place=st.sampled_from(["", "tp", "before-dp", "after-pp"]),
)
def test_format_and_parse_are_inverse(kind: str, step: int | None, number: int, place: str) -> None:
    target = f"{'rank' if kind in RANK_KINDS else 'node'}{number}"
    place = "load+7" if kind == "slow" else place if kind in PLACED_KINDS else ""
    kind += "=79" if kind in VALUE_KINDS else ""
    fault = FaultSpec(kind, step, target, place)
    assert parse_fault(str(fault)) == fault
    assert (fault.number if fault.is_on_node else fault.rank) == number
    assert fault.is_on_node == (fault.rank == -1)


def test_a_node_is_meant_by_its_name_and_by_its_number_only_where_no_node_bears_that_name() -> None:
    fault = parse_fault("agent-kill@3:node1")
    assert fault.node_among(["a", "b", "c"]) == "b"
    assert fault.node_among(["node1", "node0"]) == "node1"
    assert fault.node_among(["a"]) is None
    named = parse_fault("link-down:gpu-17.rack_2.example")
    assert named.node_among(["gpu-16", "gpu-17.rack_2.example"]) == "gpu-17.rack_2.example"
    assert named.node_among(["gpu-16", "gpu-17"]) is None
    names = ("gpu-16", "gpu-17")
    assert parse_faults(["agent-kill@3:gpu-17", "agent-kill@3:node1"], 8, 2, 10, names)
    with pytest.raises(UsageError, match=r"there is no node 'gpu-18'.*gpu-1"):
        parse_faults(["agent-kill@3:gpu-18"], 8, 2, 10, names)


def test_faults_beyond_the_job_are_refused() -> None:
    assert parse_faults(["kill@2:rank7", "agent-stop@3:node1"], 8, 2, 10) != []
    for text, message in (
        ("kill@2:rank8", "there is no rank8, ranks go from 0 to 7"),
        ("agent-kill@2:node2", "there is no node2, nodes go from 0 to 1"),
        ("kill@10:rank0", "step 10 never comes, steps go from 0 to 9"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_faults([text], 8, 2, 10)
    check_fault(parse_fault("controller-kill@999"), 1, 1)
