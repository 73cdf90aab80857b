"""Whether faults are found as soon as before: a storm of all kinds of them, in two trees by turns on one machine.

python benchmarks/storm.py [--json] [--before c910cd8^] [--rounds 4] [--gusts 20] [--clusters 2] [--load 2] [--seed 1]

*after* is this tree, *before* a git worktree of another revision, which is made for the run and removed after it. Each
round runs in both, in turns, with the same faults: clusters of three agents and six workers side by side, gusts of one
to three faults of nine kinds that overlap, and processes that only burn the processors' time. From the instant of a
fault to the finding in the controller; a worker that sleeps for ever in a script without phases counts as found when
its pause is reported. A fault whose workers were ended for another one of its gust before it was seen is overtaken, and
in neither column.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from statistics import median
from typing import Any

from common import ROOT, Json, finish, parser, scratch
from storm_account import HEAD, KINDS, Account, rows

ROUND = Path(__file__).with_name("storm_round.py")


@contextmanager
def worktree(revision: str, folder: Path) -> Iterator[Path]:
    """The tree at a revision of this repository, with its compiled part where this tree has one."""
    path = folder / "before"
    _git("worktree", "add", "--detach", "--force", str(path), revision)
    try:
        if any(ROOT.glob("agent/**/_sweep*.so")) and (compiler := which("cc") or which("gcc")):
            for source in path.glob("agent/**/sweep.c"):
                command = [compiler, "-std=gnu11", "-O2", "-shared", "-fPIC", *_include(), str(source)]
                subprocess.run([*command, "-o", str(source.with_name("_sweep.abi3.so"))], check=True)
        yield path
    finally:
        _git("worktree", "remove", "--force", str(path))


def _git(*words: str) -> None:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {words[0]} {words[1]}: {done.stderr.strip()}")


def _include() -> list[str]:
    from sysconfig import get_paths

    return [f"-I{get_paths()['include']}"]


def play(tree: Path, seed: int, options: Any) -> Account:
    """One round in a tree."""
    command = [sys.executable, str(ROUND), "--seed", str(seed), "--gusts", str(options.gusts)]
    command += ["--clusters", str(options.clusters), "--load", str(options.load)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    environment |= {"PYTHONPATH": str(tree)}
    loaded = [sys.executable, "-c", "import holdfast; print(holdfast.__file__)"]
    where = subprocess.run(loaded, cwd=tree, env=environment, capture_output=True, text=True, check=True).stdout
    if not Path(where.strip()).is_relative_to(tree):
        raise SystemExit(f"{where.strip()} was loaded, not what is in {tree}")
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    account = Account()
    for line in done.stdout.splitlines():
        account.merge(Account(**json.loads(line)))
    return account


def main() -> None:
    cli = parser(__doc__)
    cli.add_argument("--before", default="c910cd8^", help="a revision of this repository")
    cli.add_argument("--rounds", type=int, default=4, help="in each tree")
    cli.add_argument("--gusts", type=int, default=20, help="in each cluster of a round")
    cli.add_argument("--clusters", type=int, default=2, help="side by side")
    cli.add_argument("--load", type=int, default=2, help="processes that burn time")
    cli.add_argument("--seed", type=int, default=1)
    options = cli.parse_args()
    accounts = {"before": Account(), "after": Account()}
    with scratch() as folder, worktree(options.before, folder) as before:
        trees = {"before": before, "after": ROOT}
        for number in range(options.rounds):
            for name in sorted(trees, reverse=number % 2 == 0):  # the order alternates
                print(f"round {number + 1}, {name}", file=sys.stderr, flush=True)
                accounts[name].merge(play(trees[name], options.seed + number, options))
    report(accounts, options)


def report(accounts: dict[str, Account], options: Any) -> None:
    result: Json = {
        "medians_s": {
            name: {kind: median(times) for kind, times in one.times.items()} for name, one in accounts.items()
        },
        "longest_s": {name: {kind: max(times) for kind, times in one.times.items()} for name, one in accounts.items()},
        "times_s": {name: one.times for name, one in accounts.items()},
        "missed": {name: one.missed for name, one in accounts.items()},
        "overtaken": {name: one.overtaken for name, one in accounts.items()},
        "incidents_beyond_those_injected": {name: one.beyond for name, one in accounts.items()},
        "kinds": list(KINDS),
    }
    finish(result, options.json, HEAD, rows(accounts["before"], accounts["after"]))
    if not options.json:
        for name, one in accounts.items():
            print(f"{name}: overtaken {sum(one.overtaken.values())}, incidents beyond those injected {one.beyond}")


if __name__ == "__main__":
    main()
