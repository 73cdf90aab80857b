"""What a script hands to its probe, as the numbers and texts that the file has room for.

A script may hand over anything: a float where a count belongs, None, a tensor of two elements, an object whose
conversion raises. No training run may fail because it is watched: what is near a number becomes that
number, the rest counts as not said. Standard library only.
"""

import math

_MOST_TEXT = 1000


def whole(value: object, low: int, high: int, otherwise: int) -> int:
    """The whole number that this is, cut off behind the point and clamped; `otherwise` for what is none."""
    try:
        number = int(value)  # type: ignore[call-overload]  # whatever it is
    except OverflowError:  # an infinity
        return high if value > 0 else low  # type: ignore[operator]
    except Exception:
        return otherwise
    return low if number < low else high if number > high else int(number)


def real(value: object) -> float | None:
    """The number that this is, which may be NaN; None for what is none."""
    try:
        return float(value)  # type: ignore[arg-type]  # whatever it is
    except OverflowError:  # a whole number that no float can hold
        return math.inf
    except Exception:
        return None


def text(value: object) -> str:
    """The text that this is, or would be printed as; "" for what cannot be."""
    try:
        return str(value)[:_MOST_TEXT]
    except Exception:
        return ""
