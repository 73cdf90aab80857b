"""All-reduce among nodes under one switch, or between two switches, over gloo; the controller assigns the ranks
and the rendezvous. Ranks of one switch stand together, so that the ring crosses twice whatever its size.
"""

import importlib.util

from holdfast.diagnostics.catalog.options import CheckOptions
from holdfast.diagnostics.catalog.results import CheckResult, Reading
from holdfast.diagnostics.measure.busbw import Collective
from holdfast.diagnostics.measure.collective import measure

_SIZE = 16 << 20
_ITERATIONS = 5


def run(options: CheckOptions) -> CheckResult:
    if options.ranks < 2:
        return CheckResult("all-reduce", unable="needs peers: the controller runs it on several nodes")
    if importlib.util.find_spec("torch") is None:
        return CheckResult("all-reduce", unable="needs torch")
    meet = f"{options.address}:{options.port}"
    rate = measure(Collective.ALL_REDUCE, "gloo", options.rank, options.ranks, meet, _SIZE, _ITERATIONS, options.own)
    return CheckResult("all-reduce", (Reading("busbw", rate, options.part),), evidence={"ranks": options.ranks})
