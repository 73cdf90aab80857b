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
_BYTES = (0, 4, 2, 2, 8, 8, 4, 2, 1, 1, 1, 8, 16, 1, 1, 1, 1, 1, 2, 4, 8, 4)
"""Bytes of an element of each type."""
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


def other_bytes(one: int, two: int) -> bool:
    """Whether two sizes are certain to differ in bytes. Gloo knows no types: those of as many bytes pass."""
    if not one or not two or one == two:
        return False
    (first, many), (second, more) = (divmod(size, 1 << SHIFT) for size in (one, two))
    if first == second:
        return True
    if not (0 < first < len(_BYTES) and 0 < second < len(_BYTES)):
        return False
    here, there = _BYTES[first], _BYTES[second]
    if many < EXACT and more < EXACT:
        return many * here != more * there
    if here == there:
        return many != more
    # Of a large one only its least number of elements is known.
    return more * there < EXACT * here if more < EXACT else many < EXACT and many * here < EXACT * there


def words(signature: int) -> str:
    """For people: "4096 x float32"."""
    number, low = signature >> SHIFT & 31, signature & 2 * EXACT - 1
    name = TYPES[number] if number < len(TYPES) else f"type {number}"
    return f"{low if low < EXACT else f'{EXACT} or more'} x {name or 'elements'}"
