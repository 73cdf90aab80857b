"""What an incident has in common with those before it."""

from holdfast.controller.cluster.earlier import MOST, earlier
from holdfast.controller.state.incidents import Finding, Incident
from holdfast.wire import types as t

K = t.FindingKind


def incident(
    id: str, at: float, node: str = "", rank: int = -1, kind: K = K.WORKER_KILLED, signature: str = "", job: str = "j1"
) -> Incident:
    found = Finding(kind, t.Severity.CRITICAL, f"rank{rank}", "x", at, at, node, rank, signature=signature)
    return Incident(id, at, [found], job=job)


def test_node_rank_and_traceback_are_named_and_the_newest_comes_first() -> None:
    one = incident("i9", 900.0, "node1", 6, K.WORKER_EXCEPTION, "ValueError@train.py:88")
    others = [
        incident("i1", 100.0, "node1", 4),
        incident("i2", 200.0, "node2", 6),
        incident("i3", 300.0, "node1", 6, K.WORKER_EXCEPTION, "ValueError@train.py:88"),
        incident("i4", 400.0, "node3", 9, K.WORKER_EXCEPTION, "ValueError@train.py:88", job="j0"),
        incident("i5", 500.0, "node3", 6, job="j0"),  # a rank of another job is another rank
        incident("i6", 600.0, "node3", 2, K.WORKER_EXCEPTION, ""),
        incident("i10", 950.0, "node1", 6),  # came later
        one,
    ]
    found = [(other.id, same) for other, same in earlier(one, others)]
    assert found == [
        ("i4", ("traceback",)), ("i3", ("node", "rank", "traceback")), ("i2", ("rank",)), ("i1", ("node",)),
    ]  # fmt: skip


def test_a_want_of_nodes_is_looked_up_by_what_it_came_of() -> None:
    one = incident("i2", 200.0, "node1", kind=K.AGENT_EXIT)
    one.findings.append(Finding(K.CAPACITY, t.Severity.CRITICAL, "job", "needs a node", 201.0, 201.0))
    one.root = 1
    assert [other.id for other, _ in earlier(one, [incident("i1", 100.0, "node1"), one])] == ["i1"]


def test_the_list_is_bounded_and_a_node_without_a_name_is_none() -> None:
    one = incident("i99", 1e6, "node1")
    many = [incident(f"i{i}", float(i), "node1") for i in range(50)]
    assert [other.id for other, _ in earlier(one, many)] == [f"i{i}" for i in range(49, 49 - MOST, -1)]
    assert earlier(incident("i2", 9.0), [incident("i1", 1.0)]) == []
