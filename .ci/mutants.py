"""`make mutants`: small faults put into pure code, one at a time; each that no test notices is printed.

Works on a copy of the tree below build/mutants. Of each part a sample is taken, the same one each time: all take a day.
Not in CI.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkResult

ROOT = Path(__file__).resolve().parent.parent
PARTS = tomllib.loads((ROOT / ".ci" / "mutants.toml").read_text())
SAME = ("BinaryOperator_BitOr", "Operator_Is_Eq", "Operator_IsNot_NotEq")
"""Changes that are none: `X | None` is a type almost everywhere, and a member of an enumeration is one object."""
CARE = ("@dataclass(", "strict=True")
"""What code says for care's sake: nothing is other without it until something else is wrong."""
TIMEOUT_S = 300.0
"""For the tests of one part: a fault that makes them endless is found by it."""
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
    folder = ROOT / "build" / "mutants"
    shutil.rmtree(folder, ignore_errors=True)
    tree = _copy(folder / "tree")
    counts: Counter[str] = Counter()
    for name in options.parts or PARTS:
        found = _run(name, tree, folder, options.sample, options.seed)
        print(f"{name}: {_figures(found)}", flush=True)
        counts += found
    print(f"all: {_figures(counts)}")
    return 0


def _copy(tree: Path) -> Path:
    """What git knows, and what it would not ignore; symbolic links as they are."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    return tree


def _run(name: str, tree: Path, folder: Path, sample: int, seed: int) -> Counter[str]:
    part = PARTS[name]
    command = f"{sys.executable} -m pytest -x -q -p no:cacheprovider -m 'not slow' {' '.join(part['tests'])}"
    config, session = folder / f"{name}.toml", folder / f"{name}.sqlite"
    files = sorted(str(path.relative_to(tree)) for one in part["code"] for path in tree.glob(one))
    config.write_text(
        f"[cosmic-ray]\nmodule-path = {files}\ntimeout = {TIMEOUT_S}\nexcluded-modules = []\n"
        f'test-command = "{command}"\n[cosmic-ray.distributor]\nname = "local"\n'
    )
    limits = {RANKS_S: str(part["ranks_s"])} if "ranks_s" in part else {}
    _cosmic_ray(tree, limits, "baseline", config)
    _cosmic_ray(tree, limits, "init", config, session)
    with use_db(str(session), mode=WorkDB.Mode.open) as work:
        items = sorted(work.pending_work_items, key=lambda item: str(item.mutations[0]))  # job ids are random
        usable = [item for item in items if _is_change(item.mutations[0], tree)]
        kept = usable if not sample else random.Random(seed).sample(usable, min(sample, len(usable)))
        chosen = {item.job_id for item in kept}
        for item in items:
            if item.job_id not in chosen:
                work.set_result(item.job_id, WorkResult(WorkerOutcome.SKIPPED))
    _cosmic_ray(tree, limits, "exec", config, session)
    counts: Counter[str] = Counter()
    with use_db(str(session), mode=WorkDB.Mode.open) as work:
        for job, result in work.results:
            if job not in chosen:
                continue
            counts["survived" if result.test_outcome is TestOutcome.SURVIVED else "caught"] += 1
            if result.test_outcome is TestOutcome.SURVIVED:
                print(f"--- no test of {name} notices:\n{result.diff}", flush=True)
    return counts


def _is_change(mutation: MutationSpec, tree: Path) -> bool:
    """Whether a test can notice it at all."""
    if any(word in mutation.operator_name for word in SAME):
        return False
    line = (tree / mutation.module_path).read_text().splitlines()[mutation.start_pos[0] - 1]
    return not ("TrueWithFalse" in mutation.operator_name and any(word in line for word in CARE))


def _cosmic_ray(tree: Path, limits: dict[str, str], *words: str | Path) -> None:
    # Two faults of one second may have one size: bytecode by time and size would be the other's.
    env = {**os.environ, **limits, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("cosmic-ray")), *map(str, words)],
        cwd=tree, env=env, text=True, capture_output=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"mutants: cosmic-ray {words[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")


def _figures(counts: Counter[str]) -> str:
    total = counts.total()
    return f"{counts['caught']} of {total} caught ({100 * counts['caught'] / max(1, total):.0f}%)"


if __name__ == "__main__":
    sys.exit(main())
