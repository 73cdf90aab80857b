"""The questions of `holdfast plan --what-if`: what a change of the network costs the best layout."""

from math import isfinite
from typing import TYPE_CHECKING

from holdfast.cli.common import output

if TYPE_CHECKING:  # numpy takes time to import
    from holdfast.planner.network.questions import Reply
    from holdfast.planner.packets.questions import RackReply
    from holdfast.planner.search.ranked import Ranked
    from holdfast.planner.search.search import Search


def check(questions: list[str], search: "Search") -> None:
    """A question that can't be answered is refused before the search."""
    from holdfast.planner.network.network import Network
    from holdfast.planner.network.of_cluster import clos_of
    from holdfast.planner.network.traffic import StepTraffic
    from holdfast.planner.packets.questions import ask

    for question in questions:
        ask(question, StepTraffic(1, 1, 1, 0.0, 0.0), Network(clos_of(search.costs.cluster)), slots=0)


def asked(questions: list[str], best: "Ranked", search: "Search") -> "list[Reply | RackReply]":
    """What the network does to the best layout's transfers, as it is and with each change."""
    from holdfast.planner.network.network import Network
    from holdfast.planner.network.of_cluster import clos_of
    from holdfast.planner.network.questions import now
    from holdfast.planner.network.traffic import StepTraffic
    from holdfast.planner.packets.questions import ask

    layout, wire = best.layout, best.prediction.wire.by_purpose
    traffic = StepTraffic(
        layout.pp,
        layout.dp,
        layout.tp,
        wire["replicas"] / layout.world,
        wire["pipeline"] / (2 * max(1, layout.pp - 1) * layout.dp * layout.tp),
    )
    network = Network(clos_of(search.costs.cluster))
    return [now(traffic, network), *(ask(question, traffic, network) for question in questions)]


def print_replies(replies: "list[Reply | RackReply]") -> None:
    from holdfast.planner.packets.questions import RackReply

    table = output.table("WHAT IF", ">SUMS", ">MESSAGES", ">SHARED UPLINKS", "")
    assert not isinstance(replies[0], RackReply)
    first = replies[0].answer
    assert first is not None
    for one in replies:
        if isinstance(one, RackReply):
            for line in one.lines():
                table.add_row(one.question, "", "", "", line)
        elif one.answer is not None:
            slower = one.answer.sums_s / first.sums_s - 1 if first.sums_s else 0.0
            text = f"sums {slower:+.0%}" if abs(slower) >= 0.005 else ""
            if one.answer.cut_off:
                text = f"{one.answer.cut_off:,} rings and messages are cut off: the job stops"
            both = one.answer.sums_s, one.answer.messages_s
            times = [f"{1e3 * value:.4g} ms" if isfinite(value) else "never" for value in both]
            table.add_row(one.question, *times, f"{one.answer.conflicts:,}", text)
        elif one.flap is not None:
            text = f"InfiniBand gives up after {one.flap.tolerance_s:.3g} s: the job fails"
            if one.flap.ends_s is not None:
                text = f"the step ends {one.flap.ends_s - one.flap.calm_s:.3g} s later"
            table.add_row(one.question, "", "", "", text)
    output.out().print(table)
