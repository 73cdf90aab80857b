"""Matrix products of processes that train have the same bits wherever their operands lie in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.trainer.determinism import VARIABLE

PRODUCTS = """
import itertools, json, os, torch
def products(rows, inner, columns):
    torch.manual_seed(0)
    flat = torch.randn(rows * inner + columns * inner, dtype=torch.float64)
    seen = set()
    for place in range(16):
        left, right = (torch.empty(len(part) + 16, dtype=torch.float64)[place:][:len(part)].copy_(part)
                       for part in flat.split([rows * inner, columns * inner]))
        left, right = left.view(rows, inner), right.view(inner, columns)
        seen.add((left @ right).numpy().tobytes() + (right.t() @ left.t()).numpy().tobytes())
    return len(seen)
sizes = (8, 13, 7), (64, 32, 32), (40, 40, 40)
print(json.dumps([os.environ.get("MKL_CBWR"), *itertools.starmap(products, sizes)]), flush=True)
"""
# How each process that trains begins, as far as the first product.
FORKED = """
import os
from holdfast.trainer.preload import preload
preload()
if (child := os.fork()):
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
FORKED_FROM_ONE_THAT_HAS_NOT_COMPUTED = """
import os, torch
if (child := os.fork()):
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
from holdfast.trainer.__main__ import main
assert main(["--steps", "none"]) == 2
"""
EMBEDDINGS = """
import sys
from contextlib import suppress
from holdfast.trainer.embeddings.trainer import main
sys.argv[1:] = ["/no/such/run", "0"]
with suppress(OSError):
    main()
"""
BEGINNINGS = {
    "forked": FORKED,
    "forked from one that has not computed": FORKED_FROM_ONE_THAT_HAS_NOT_COMPUTED,
    "embeddings": EMBEDDINGS,
}


def run(beginning: str, **variables: str) -> list[object]:
    """The variable, and of each product how many results it has over 16 places in memory."""
    env = {name: value for name, value in os.environ.items() if name != VARIABLE} | variables
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", beginning + PRODUCTS]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=True)
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_product_has_the_same_bits_wherever_its_operands_lie(beginning: str) -> None:
    """Many CPUs pass without the variable, hence the look at it."""
    assert run(BEGINNINGS[beginning]) == ["AUTO", 1, 1, 1]


def test_the_users_own_value_stays() -> None:
    assert run(FORKED, MKL_CBWR="COMPATIBLE") == ["COMPATIBLE", 1, 1, 1]
