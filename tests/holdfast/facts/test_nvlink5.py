"""Xids 144 to 150 against every row of NVIDIA's decode table, in the driver's own form of line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.facts import nvlink5, xid
from holdfast.facts.nvlink5 import Advice
from holdfast.facts.xid import RecoveryAction, Xid

I, R, F = Advice.IGNORE, Advice.RESET, Advice.FOLLOW_154  # noqa: E741
DOWN_V1, DOWN_V2 = 0b01_1100_0110, 0b001_0001

# code, name before R575 and since, the unit's bits in IntrInfo before and since, {status: bucket}
ROWS: list[tuple[int, str, str, int, int, dict[int, Advice]]] = [
    (144, "SAW_MVB", "SAW_MVB", 0b100001, 0b1, {1: I, 2: R, 4: I, 8: I, 0x10: R, 0x20: I}),
    (145, "RLW_CTRL", "RLW_CTRL", 0b1100010, 0b11, {1 << 31: I}),
    (
        145, "RLW_REMAP", "RLW_REMAP", 0b10000010, 0b100,
        {1: F, 2: F, 4: F, 8: F, 0x10: F, 0x20: F, 0x40: R, 0x80: R, 0x100: I, 0x200: I, 1 << 31: I},
    ),
    (145, "RLW_RSPCOL", "RLW_RSPCOL", 0b10100010, 0b101, {1: I, 2: R, 1 << 31: I}),
    (145, "RLW_RXPIPE", "RLW_RXPIPE", 0b11000010, 0b110, {1: I, 2: I, 4: I, 8: I, 1 << 31: I}),
    (
        145, "RLW_SRC_TRACK", "RLW_SRC_TRACK", 0b11100010, 0b111,
        {1: R, 2: I, 4: F, 8: F, 0x10: R, 0x20: R, 1 << 31: I},
    ),
    (
        145, "RLW_TAGSTATE", "RLW_TAGSTATE", 0b100000010, 0b1000,
        {1: I, 2: R, 0x10000: I, 0x20000: R, 0x100000: R, 1 << 31: I},
    ),
    (146, "TLW_CTRL", "TLW_CTRL", 0b100100011, 0b1001, {1: I, 2: I, 4: R, 1 << 31: I}),
    (146, "TLW_RX", "TLW_RX_PIPE0", 0b101000011, 0b1010, {1: I, 2: I, 4: R, 1 << 31: I}),
    (146, "TLW_RX", "TLW_RX_PIPE1", 0b101000011, 0b1011, {1: I, 2: I, 4: R, 1 << 31: I}),
    (146, "TLW_TX", "TLW_TX_PIPE0", 0b101100011, 0b1100, {1: I, 2: I, 4: R, 1 << 31: I}),
    (146, "TLW_TX", "TLW_TX_PIPE1", 0b101100011, 0b1101, {1: I, 2: I, 4: R, 1 << 31: I}),
    (147, "TREX", "TREX", 0b110000100, 0b1110, {1: I, 1 << 31: I}),
    (148, "NVLPW_CTRL", "NVLPW", 0b101, 0b1111, {1 << 31: I}),
    (149, "NETIR", "NETIR_INT", 0b110, 0b11000, {0: R}),
    (149, "NETIR_BER_EVENT", "NETIR_BER_EVENT", 0b1000100110, 0b10011, {0: I, 1: I, 2: I, 3: I}),
    (149, "NETIR_MFDE_EVENT", "NETIR_MFDE_EVENT", 0b1001000110, 0b10100, {1: R, 3: I, 4: R, 5: R, 7: R}),
    (150, "MSE_WATCHDOG", "MSE_WATCHDOG", 0, 0, {0: R}),
]  # fmt: skip
DOWN = {
    **dict.fromkeys([0, 1, 2, 4, 0b1010, 0b1111, 0b10000, 0b10001, 0b10010, 0b10101, 0b10110, 0b101010, 0b101011], R),
    **dict.fromkeys(range(0b100000, 0b100110), R), 0b100110: I, 0b101000: I,
}  # fmt: skip
"""Why a link went down (IntrInfo bits 25:20) -> bucket."""


def line(code: int, unit: str, info: int, status: int, word: str = "Fatal", link: int = 8) -> str:
    rest = " 0x00000000" * 4
    return (
        f"NVRM: Xid (PCI:0018:01:00): {code}, {unit:<15} {word:<7} XC0 i0 Link {link:02d} "
        f"(0x{info:08x} 0x{status:08x}{rest})"
    )


def action(text: str) -> RecoveryAction:
    found = xid.parse(text)
    assert found is not None
    return found.action


WANTED = {I: RecoveryAction.IGNORE, R: RecoveryAction.RESET_GPU, F: RecoveryAction.FOLLOW}


@pytest.mark.parametrize("word", ["Fatal", "Nonfatal"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2])
def test_every_row_of_the_table_in_both_generations_whatever_the_word(
    row: tuple[int, str, str, int, int, dict[int, Advice]], word: str
) -> None:
    code, old, new, v1, v2, buckets = row
    for status, bucket in buckets.items():
        for unit, info in ((old, v1 | 0x4505 << 10 & 0xF_F800), (new, v2 | 0x300 << 8 & 0xF_FF00)):
            assert action(line(code, unit, info, status, word)) is WANTED[bucket], (unit, hex(info), hex(status))


@pytest.mark.parametrize("word", ["Fatal", "Nonfatal"])
def test_a_link_that_went_down_is_judged_by_the_reason(word: str) -> None:
    for reason, bucket in DOWN.items():
        for unit, low in (("NETIR_LINK_EVT", DOWN_V1), ("NETIR_LINK_DOWN", DOWN_V2)):
            assert action(line(149, unit, reason << 20 | low, 0, word)) is WANTED[bucket], bin(reason)


def test_lines_that_were_seen() -> None:
    seen = "NVRM: Xid (PCI:{}): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link {} ({} 0x00000000 0x00000000)"
    assert action("[171167.620236] " + seen.format("0009:01:00", "01", "0x021425c6")) is RecoveryAction.RESET_GPU
    assert action(seen.format("0018:01:00", "09", "0x025525c6")) is RecoveryAction.RESET_GPU  # the other end went down
    assert action(seen.format("0018:01:00", "00", "0x026001c6")) is RecoveryAction.IGNORE  # software took it down
    report = nvlink5.parse("NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]")  # before R575
    assert report is not None
    assert (report.unit, report.link, report.info) == ("NETIR_LINK_EVT", 1, 10)
    assert report.where == "NETIR_LINK_EVT, link 1"


def test_a_promoted_error_asks_for_a_reset() -> None:
    for status in (1, 2, 4):
        assert action(line(145, "RLW_RXPIPE", 0b110 | 1 << 7, status, "Nonfatal")) is RecoveryAction.RESET_GPU
        assert action(line(145, "RLW_RXPIPE", 0b11000010 | 1 << 10, status, "Nonfatal")) is RecoveryAction.RESET_GPU
    assert action(line(145, "RLW_RXPIPE", 0b110 | 1 << 7, 8, "Nonfatal")) is RecoveryAction.IGNORE


def test_several_errors_at_once_ask_for_what_the_worst_asks() -> None:
    assert action(line(145, "RLW_REMAP", 0b100, 0x1 | 0x100)) is RecoveryAction.FOLLOW
    assert action(line(145, "RLW_REMAP", 0b100, 0x1 | 0x40)) is RecoveryAction.RESET_GPU
    assert action(line(145, "RLW_REMAP", 0b100, 0x100 | 1 << 31)) is RecoveryAction.IGNORE


def test_what_the_table_does_not_have_takes_nothing_away_by_itself() -> None:
    for text in (
        line(149, "NETIR_LINK_EVT", 0x3F << 20 | DOWN_V2, 0),  # a reason that came later
        line(146, "TLW_NEW", 0b1001, 4),
        line(144, "TLW_CTRL", 0b1001, 4),  # a unit of another code
        line(146, "TLW_CTRL", 0b1001, 0x40),
        "NVRM: Xid (PCI:0018:01:00): 149, Fatal",
    ):
        assert action(text) is RecoveryAction.FOLLOW, text
    assert action(line(146, "TLW_NEW", 0b1001, 4, "Nonfatal")) is RecoveryAction.IGNORE


@given(st.sampled_from(list(nvlink5.CODES)), st.text(max_size=80))
def test_any_text_is_read(code: int, text: str) -> None:
    assert Xid(code, "", text).action in (RecoveryAction.FOLLOW, RecoveryAction.IGNORE, RecoveryAction.RESET_GPU)
