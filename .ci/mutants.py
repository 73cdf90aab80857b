"""`make mutants`: small faults put into pure code, one at a time; each that no test notices is printed.

Works on a copy of the tree below build/mutants. Of each part a sample is taken, the same one each time: all take a day.
Not in CI.

A fault costs little more than the tests that it fails: they run in a fork of this process, which has imported the
libraries once and Holdfast never, and the test file that is named after the module runs first.
"""

import argparse
import ast
import difflib
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.ast.ast_query import ASTQuery
from cosmic_ray.mutating import use_mutation
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.work_item import MutationSpec

ROOT = Path(__file__).resolve().parent.parent
PARTS = tomllib.loads((ROOT / ".ci" / "mutants.toml").read_text())
SAME = ("BinaryOperator_BitOr", "Operator_Is_Eq", "Operator_IsNot_NotEq")
"""Changes that are none: `X | None` is a type almost everywhere, and a member of an enumeration is one object."""
CARE = ("@dataclass(", "strict=True")
"""What code says for care's sake: nothing is other without it until something else is wrong."""
TIMEOUT_S = 300.0
"""For the tests of one part: a fault that makes them endless is found by it."""
WARM = ("torch", "numpy", "scipy", "sympy", "networkx", "hypothesis", "pydantic", "psutil")
"""Libraries of which the tests' modules are imported before the forks: torch alone takes seconds."""
IMPORTED = "ignore::pytest.PytestAssertRewriteWarning"
"""Plugins that are imported before pytest begins can do without its asserts."""
RANKS_S = "HOLDFAST_TEST_RANKS_S"
"""Tests that start ranks kill them after so long, and fail: ended from outside, they would leave ranks behind."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--sample", type=int, default=40, metavar="N", help="faults in each part; 0: all (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    options = parser.parse_args()
    if unknown := sorted({*options.parts} - PARTS.keys()):
        parser.error(f"no part {unknown[0]!r}: choose of {', '.join(PARTS)}")
    tree = ROOT / "build" / "mutants" / "tree"
    shutil.rmtree(tree.parent, ignore_errors=True)
    _copy(tree)
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    os.environ["PYTHONPATH"] = str(tree)
    # The same examples each time, and none made smaller: that a test fails is enough.
    quick = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=quick)
    hypothesis.settings.load_profile("mutants")
    counts: Counter[str] = Counter()
    for name in options.parts or PARTS:
        found = _run(PARTS[name], name, options.sample, options.seed)
        print(f"{name}: {_figures(found)}", flush=True)
        counts += found
    print(f"all: {_figures(counts)}")
    return 0


def _copy(tree: Path) -> None:
    """What git knows, and what it would not ignore; symbolic links as they are."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)


def _run(part: dict[str, Any], name: str, sample: int, seed: int) -> Counter[str]:
    if "ranks_s" in part:
        os.environ[RANKS_S] = str(part["ranks_s"])
    else:
        os.environ.pop(RANKS_S, None)
    started = time.monotonic()
    if not _passes(part, "", warm := Path("../modules")):
        sys.exit(f"mutants: the tests of {name} fail without a fault:\n{Path('../said.txt').read_text()[-2000:]}")
    print(f"{name}: {time.monotonic() - started:.0f} s without a fault", flush=True)
    for module in warm.read_text().split():
        importlib.import_module(module)
    # Two faults of one second may have one size: bytecode by time and size would be the other's.
    for path in _files(part):
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
    usable = _usable(part)
    chosen = usable if not sample else random.Random(seed).sample(usable, min(sample, len(usable)))
    counts: Counter[str] = Counter()
    for one in chosen:
        with use_mutation(one.module_path, get_operator(one.operator_name)(), one.occurrence) as (before, after):
            survived = _passes(part, one.module_path.stem)
        counts["survived" if survived else "caught"] += 1
        if survived:
            path = str(one.module_path)
            lines = difflib.unified_diff(before.splitlines(), (after or "").splitlines(), path, path, lineterm="")
            print(f"--- no test of {name} notices:", *lines, sep="\n", flush=True)
    return counts


def _files(part: dict[str, Any]) -> list[Path]:
    return sorted(path for one in part["code"] for path in Path().glob(one))


def _usable(part: dict[str, Any]) -> list[MutationSpec]:
    """The faults of a part that a test can notice, in a fixed order."""
    kept = []
    for path in _files(part):
        named = [one for one in ast.parse(path.read_text()).body if getattr(one, "name", "") in part.get("but", ())]
        left_out = {line for one in named for line in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
        kept += [one for one in _mutations(path) if one.start_pos[0] not in left_out and _is_change(one)]
    return sorted(kept, key=str)


def _mutations(path: Path) -> Iterator[MutationSpec]:
    nodes = list(ast_nodes(get_ast_from_path(path)))
    for name in operator_names():
        if (kind := get_operator(name)).arguments():
            continue
        operator = kind()
        places = ((node, *place) for node in nodes for place in operator.mutation_positions(node))
        for number, (node, start, end) in enumerate(places):
            yield MutationSpec(str(path), name, number, start, end, {}, ASTQuery(node).get_definition_name())


def _passes(part: dict[str, Any], stem: str, modules: Path | None = None) -> bool:
    """Whether the part's tests pass in a fork, those in `test_STEM.py` first; what they say is in said.txt.

    With a path in `modules`, and no fault in the tree, it writes bytecode, and to the path what was imported."""
    tests = sorted(part["tests"], key=lambda one: Path(one).stem != f"test_{stem}")
    words = ["-x", "-q", "-p", "no:cacheprovider", "-W", IMPORTED, "-m", "not slow", *tests]
    words += [f"--deselect={one}" for one in part.get("without", ())]
    child = os.fork()
    if not child:
        os.setsid()
        said = os.open("../said.txt", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for stream in (0, 1, 2):
            os.dup2(said, stream)
        sys.dont_write_bytecode = modules is None
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        status = int(pytest.main(words))
        if modules:
            modules.write_text("\n".join(one for one in [*sys.modules] if one.split(".")[0] in WARM))
        os._exit(status)
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _is_change(mutation: MutationSpec) -> bool:
    """Whether a test can notice it at all."""
    if any(word in mutation.operator_name for word in SAME):
        return False
    line = mutation.module_path.read_text().splitlines()[mutation.start_pos[0] - 1]
    return not ("TrueWithFalse" in mutation.operator_name and any(word in line for word in CARE))


def _figures(counts: Counter[str]) -> str:
    total = counts.total()
    return f"{counts['caught']} of {total} caught ({100 * counts['caught'] / max(1, total):.0f}%)"


if __name__ == "__main__":
    sys.exit(main())
