"""The client of NCCL's RAS, against a real TCP server: what it asks, what it reads, and what bounds it."""

import contextlib
import json
import socket
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.activity.nccl_ras import PATIENCE_S, Absent, RasMember, TooLong, ask, parse_json, parse_text
from holdfast.agent.activity.operations import NcclOperations
from holdfast.base.errors import ProtocolError, Unavailable
from holdfast.cli.local.ports import free_port
from tests.agent.support.fake_ras import FakeRas, serve

PATIENT = 30.0
"""Seconds, where an answer is certain to come."""
RANKS = [(n, "127.0.0.1", 100 + n, {"AllReduce": 641 - (n == 2), "SendRecv": n}) for n in range(4)]

DOCUMENTED = """\
NCCL version 2.24.3 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 (NVML 5) managed by process 483074 on node 172.16.64.210

"""
"""From NVIDIA's documentation, shortened."""


def test_it_asks_as_nvidias_client_does_and_reads_every_count() -> None:
    with serve(FakeRas(RANKS)) as ras:
        status = ask(ras.address, PATIENT)
    assert ras.heard == ["client protocol 2", "timeout 0.3", "set format json", "verbose status"]
    assert status.members == [
        RasMember("0xfa93daea854b060b", rank, host, pid, counts) for rank, host, pid, counts in RANKS
    ]
    assert status.most == {("0xfa93daea854b060b", "AllReduce"): 641, ("0xfa93daea854b060b", "SendRecv"): 3}


def test_an_older_server_reports_in_text_which_rank_differs() -> None:
    with serve(FakeRas(RANKS, has_json=False)) as ras:
        status = ask(ras.address, PATIENT)
    assert ras.heard[-2:] == ["set format json", "verbose status"]
    members = {member.rank: member.counts for member in status.members}
    assert members == {0: {"SendRecv": 0}, 1: {"SendRecv": 1}, 2: {"AllReduce": 640, "SendRecv": 2}, 3: {"SendRecv": 3}}
    assert status.most["0xfa93daea854b060b", "AllReduce"] == 641
    with serve(FakeRas(RANKS)) as ras:
        assert ask(ras.address, PATIENT, as_text=True).members == status.members
    assert "set format json" not in ras.heard


def test_the_text_of_nvidias_documentation_is_understood() -> None:
    status = parse_text(DOCUMENTED)
    assert status.members == [
        RasMember("0x27a079b828ff1a75", 0, "172.16.64.210", 483072, {"collective": 6649}),
        RasMember("0x27a079b828ff1a75", 2, "172.16.64.210", 483074, {"collective": 6649}),
    ]
    assert status.most == {("0x27a079b828ff1a75", "collective"): 6650}


RECORDED = Path(__file__).parent / "recorded"


def test_the_answers_of_a_real_server_are_understood() -> None:
    """NCCL 2.28.9, two ranks on an H200 that have begun two all-reduces each. As text it names no rank that differs."""
    status = parse_json((RECORDED / "nccl-2.28.9-two-ranks.json").read_text())
    counts = {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 2}
    name = "0x111c2b57bda95203"
    assert status.members == [RasMember(name, rank, "127.0.0.1", 870 + rank, counts) for rank in (0, 1)]
    assert status.most == {(name, kind): count for kind, count in counts.items()}
    as_text = parse_text((RECORDED / "nccl-2.28.9-two-ranks.txt").read_text())
    assert (as_text.members, as_text.most) == ([], {})


def test_a_real_answer_with_one_that_lags_names_it() -> None:
    """The recorded one, with one all-reduce fewer of rank 1 and with a rank that did not answer."""
    whole = json.loads((RECORDED / "nccl-2.28.9-two-ranks.json").read_text())
    (communicator,) = whole["communicators"]
    communicator["ranks"][1]["collective_counts"]["AllReduce"] = 1
    communicator["missing_ranks"] = [{"rank": 2, "host": "127.0.0.1", "pid": 872, "unresponsive": True}]
    asked = NcclOperations(lambda address, as_text=False: parse_json(json.dumps(whole)))
    asked.look([870, 871, 872])
    asked.look([870, 871, 872])
    assert [asked.behind(pid) for pid in (870, 871, 872)] == [
        "",
        "by NCCL's count it has begun 1 AllReduce operations as rank 1 of communicator 0x111c2b57bda95203, "
        "and a peer 2",
        "",
    ]


def test_where_no_server_listens_there_is_no_ras() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(Absent):
        ask(address, PATIENT)
    for wrong in ("", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000", "127.0.0.1:x"):
        with pytest.raises(Unavailable):
            ask(wrong)


@pytest.mark.parametrize("ras", [FakeRas(RANKS, silent=True), FakeRas(RANKS, drips=True)], ids=["silent", "drips"])
def test_a_server_that_does_not_come_to_an_end_costs_half_a_second(ras: FakeRas) -> None:
    with serve(ras):
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"time"):
            ask(ras.address)
        assert PATIENCE_S - 0.1 < time.monotonic() - began < 60 * PATIENCE_S


def test_an_answer_without_an_end_is_cut_off() -> None:
    with serve(FakeRas(answer="x" * 300_000)) as ras, pytest.raises(TooLong):
        ask(ras.address, PATIENT, most=100_000)
    with serve(FakeRas(RANKS)) as ras:
        assert len(ask(ras.address, PATIENT, most=100_000).members) == 4


@pytest.mark.parametrize(
    "answer",
    [
        "", "[]", "{}", "null", '{"communicators": {}}', '{"communicators": [{"hash": "0x1", "ranks": [[]]}]}',
        "[" * 100_000, json.dumps({"communicators": [{"hash": "0x1", "ranks": [{"rank": True}]}]}), "\x00\xff",
    ],
)  # fmt: skip
def test_what_is_no_status_is_refused(answer: str) -> None:
    with serve(FakeRas(answer=answer)) as ras, pytest.raises(ProtocolError):
        ask(ras.address, PATIENT)


def test_what_is_no_ras_is_refused() -> None:
    def speak() -> None:
        with server.accept()[0] as line:
            line.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=speak, daemon=True).start()
        with pytest.raises(ProtocolError, match="is not an NCCL RAS server"):
            ask(f"127.0.0.1:{server.getsockname()[1]}", PATIENT)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["communicators", "hash", "ranks", "rank", "host", "pid", "collective_counts", "x"]), inner
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_no_json_raises_anything_else_or_gets_through_with_odd_names(value: object) -> None:
    with contextlib.suppress(ProtocolError):
        for member in parse_json(json.dumps({"communicators": [{"hash": "\x1b[1m0x1", "ranks": value}]})).members:
            assert member.communicator == "1m0x1"


@given(st.text() | st.lists(st.sampled_from(DOCUMENTED.splitlines())).map("\n".join))
def test_no_text_raises(text: str) -> None:
    parse_text(text)
