"""The Flight Recorder's text, without torch: entries under way, the newest of each group, kinds and sizes."""

import json
from typing import Any

import pytest

from holdfast.agent.hooks.torch_record import ended, kind_and_size, newest, unretired
from holdfast.agent.probe_file.layout import OPERATION_KINDS
from holdfast.wire.operation_size import words


def entry(number: int, group: str = "0", retired: bool = True, **changes: Any) -> dict[str, Any]:
    """As torch 2.13 writes it: keys in order, no spaces, no objects inside."""
    made = {
        "collective_seq_id": number, "input_dtypes": ["Float"], "input_sizes": [[2, 3]], "is_p2p": False,
        "op_id": number, "output_dtypes": ["Float"], "output_sizes": [[2, 2, 3]], "p2p_seq_id": 0, "pg_id": 0,
        "process_group": [group, "default_pg"], "profiling_name": "gloo:all_reduce", "record_id": number,
        "retired": retired, "state": "scheduled", "thread_id": "140385831984000", "thread_name": "python",
        "time_created_ns": 1795858265726998395, "timeout_ms": 1800000,
    }  # fmt: skip
    return made | changes


def text(*entries: dict[str, Any]) -> str:
    whole = {"comm_lib_version": "", "entries": entries, "pg_status": {"0": {"last_enqueued_collective": "3"}}}
    return json.dumps(whole, separators=(",", ":"), sort_keys=True)


def test_only_what_is_under_way_is_parsed() -> None:
    odd = 'a"},{"collective_seq_id":{"retired":false,"timeout_ms":'  # a group may be called anything
    entries = [entry(1), entry(2, retired=False), entry(3), entry(4, odd, retired=False), entry(5, odd)]
    assert unretired(text(*entries)) == [entries[1], entries[3]]
    assert unretired(text(entry(1))) == unretired(text()) == unretired("") == []


def test_a_text_of_another_form_is_an_error() -> None:
    for other in (
        '"retired":false',
        '{"retired":false,"timeout_ms":1}',
        '{"collective_seq_id":,"retired":false,"timeout_ms":1}',
    ):
        with pytest.raises(ValueError, match=r"substring not found|Expecting value"):
            unretired(other)


def test_the_newest_of_each_group() -> None:
    written = text(entry(3, "0"), entry(9, "12"), entry(4, "0"), entry(1, 'with "quotes"'))
    slots = {"0": 1, "1": 2, "12": 3, 'with "quotes"': 4}
    assert newest(written, slots) == {1: 4, 3: 9, 4: 1}


def test_the_last_of_a_group_that_are_over() -> None:
    odd = 'a"},{"collective_seq_id":{"retired":false,"timeout_ms":'
    entries = [entry(n) for n in (1, 2, 3, 4)] + [entry(7, odd), entry(5, retired=False), entry(8, odd)]
    written = text(*entries)
    assert ended(written, "0", 5, 3) == entries[3:0:-1]
    assert ended(written, "0", 5, 9) == entries[3::-1]
    assert ended(written, odd, 8, 9) == [entries[6], entries[4]]
    # Another thread has begun one more since, or torch has begun the numbers of this name anew.
    for newest_known in (4, 6, 0):
        assert ended(written, "0", newest_known, 9) == []
    anew = text(entry(7), entry(8), entry(1), entry(2))
    assert [one["collective_seq_id"] for one in ended(anew, "0", 2, 9)] == [2, 1]
    gap = text(entry(1), entry(3), entry(4))
    assert [one["collective_seq_id"] for one in ended(gap, "0", 4, 9)] == [4, 3]
    assert ended(written, "1", 5, 9) == ended("", "0", 5, 9) == []


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("gloo:all_reduce", "all_reduce", "6 x float32"),
        ("gloo:all_gather", "all_gather", "12 x float32"),
        ("gloo:gather", "gather", None),
        ("gloo:sparse_all_reduce", "", None),
        ("all_reduce", "all_reduce", "6 x float32"),
    ],
)
def test_kind_and_size_are_those_of_the_hooks(name: str, kind: str, size: str | None) -> None:
    number, signature = kind_and_size(entry(1, profiling_name=name))
    assert OPERATION_KINDS[number] == kind
    assert (words(signature) if signature else None) == size


def test_sizes_of_several_tensors_add_up_and_mixed_or_unknown_types_have_none() -> None:
    two = {"input_sizes": [[4], []], "input_dtypes": ["Long", "Long"]}
    assert words(kind_and_size(entry(1, **two))[1]) == "5 x int64"
    for types in (["Long", "Float"], ["Float8_e4m3fn", "Float8_e4m3fn"], []):
        assert kind_and_size(entry(1, **{**two, "input_dtypes": types}))[1] == 0
