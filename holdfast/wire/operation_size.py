"""The size of what ranks do together as one number of 31 bits: elements and type of what they hand over.

Ranks that meet in one operation must have the same; a probe packs it, and what judges a hang unpacks it into words.
0 stands for a size that is not known, or need not be the same everywhere.
"""

TYPES: tuple[str, ...] = (
    "", "float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "uint16",
    "uint32", "uint64", "complex32",
)  # fmt: skip
"""Names of torch's element types by number: append only, up to 31."""
_BITS = 25
SHIFT = _BITS + 1
"""Bits below the type's number."""
EXACT = 1 << _BITS
"""Numbers of elements below this are sent; of larger ones only whether they are the same."""
_PRIME = 33554393  # the largest below EXACT: sizes that differ by a multiple of a power of two stay different


def pack(elements: int, type_number: int) -> int:
    """The signature; never 0 for a known type."""
    low = elements if 0 <= elements < EXACT else EXACT | elements % _PRIME
    return (type_number & 31) << SHIFT | low


def words(signature: int) -> str:
    """For people: "4096 x float32"."""
    number, low = signature >> SHIFT & 31, signature & 2 * EXACT - 1
    name = TYPES[number] if number < len(TYPES) else f"type {number}"
    return f"{low if low < EXACT else f'{EXACT} or more'} x {name or 'elements'}"
