"""A processor that multiplies wrongly, as seen by programs: where the file named by `WRONG_NUMBERS_IF` is, one
element of some of numpy's matrix products comes out changed. Python imports this file by itself when its folder lies on
PYTHONPATH; nothing in the product knows of it.
"""

import os
import sys

if "holdfast.diagnostics" in sys.orig_argv and os.path.exists(os.environ.get("WRONG_NUMBERS_IF", "")):
    import numpy

    _right = numpy.matmul
    _calls = 0

    def _sometimes_wrong(a, b):  # type: ignore[no-untyped-def]
        global _calls
        product = _right(a, b)
        _calls += 1
        if _calls % 3 == 0:
            product[_calls % product.shape[0], 7] += 1.0
        return product

    numpy.matmul = _sometimes_wrong  # type: ignore[assignment]
