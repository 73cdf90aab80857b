"""Xid 74 (NVLink of Hopper and older): does its line report only what NVIDIA says can be passed over?

Source: NVIDIA's Xid catalogue, resolution bucket WORKFLOW_NVLINK_ERR: of the registers in the line the first, third,
fourth and fifth hold errors; in the first bits 0, 23 and 30 can be ignored, in the fifth bits 20, 23, 26 and 29 say
that a number of corrected errors was passed, and operation goes on.
"""

import re

_REGISTERS = re.compile(r"link \d+\s*\((0x[0-9a-fA-F]+(?:,\s*0x[0-9a-fA-F]+){4,6})\)")
_HARMLESS = {0: 1 << 0 | 1 << 23 | 1 << 30, 4: 1 << 20 | 1 << 23 | 1 << 26 | 1 << 29}
"""By the register's place, from 0."""


def is_harmless(text: str) -> bool:
    """NVRM: Xid (PCI:0000:84:00): 74, pid=1, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, ...)"""
    match = _REGISTERS.search(text)
    if match is None:
        return False
    registers = [int(word, 16) for word in match[1].split(",")]
    return any(registers) and not any(value & ~_HARMLESS.get(place, 0) for place, value in enumerate(registers))
