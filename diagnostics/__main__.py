"""`python -m holdfast.diagnostics CHECK… --json`: run checks on this node, one line with the result of each.

An agent starts this; by hand it is the way to run one check alone. Exit code 0 whatever the checks find: what is bad
is judged by the reader of the results. 2 for bad input.
"""

import argparse
import sys
import time
from collections.abc import Callable
from importlib import import_module

from holdfast.base import service
from holdfast.diagnostics.catalog.catalog import BY_NAME, Suite, choose
from holdfast.diagnostics.catalog.options import CheckOptions, parse_options
from holdfast.diagnostics.catalog.results import CheckResult


def run_check(name: str, options: CheckOptions) -> CheckResult:
    """One check, whatever happens in it."""
    start = time.perf_counter()
    try:
        check: Callable[[CheckOptions], CheckResult] = import_module(
            f"holdfast.diagnostics.checks.{name.replace('-', '_')}"
        ).run
        result = check(options)
    except Exception as error:
        result = CheckResult(name, error=f"{type(error).__name__}: {error}")
    return CheckResult(
        name, result.readings, result.faults, result.unable, result.error, result.evidence,
        time.perf_counter() - start,
    )  # fmt: skip


def main(argv: list[str]) -> int:
    service.follow_parent()
    service.give_way()  # our parent may have done so first: then that would say nothing of our own session
    parser = argparse.ArgumentParser("python -m holdfast.diagnostics", description=__doc__)
    parser.add_argument("checks", nargs="+", metavar="CHECK", help=f"any of: {', '.join(BY_NAME)}")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, as agents read it")
    parser.add_argument("--options", default="{}", metavar="JSON", help="options of the check, e.g. a pair's partner")
    parser.add_argument("--folder", default="", help="where the disk check writes")
    given = parser.parse_args(argv)
    choose(Suite.FULL, tuple(given.checks))
    options = parse_options(given.options, folder=given.folder)
    if not options.polite:
        service.raise_priority()  # what other programs do on an idle node is noise
    for name in given.checks:
        result = run_check(name, options)
        print(result.to_json() if given.json else _lines(result), flush=True)
    return 0


def _lines(result: CheckResult) -> str:
    lines = [f"{result.check}: {result.seconds:.2f} s"]
    lines += [f"  {r.component + ' ' if r.component else ''}{r.metric} {r.value:.4g}" for r in result.readings]
    lines += [f"  FAULT {f.component} {f.text}" for f in result.faults]
    lines += [f"  cannot run here: {result.unable}"] * bool(result.unable)
    lines += [f"  failed to run: {result.error}"] * bool(result.error)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(service.report(lambda: main(sys.argv[1:])))
