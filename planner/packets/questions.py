"""`--what-if incast:SENDERS`, packet by packet; all other questions are the network's own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from holdfast.planner.network import questions
from holdfast.planner.network.errors import NetworkError
from holdfast.planner.network.network import Network
from holdfast.planner.network.traffic import StepTraffic
from holdfast.planner.packets.incast import Meeting, incasts
from holdfast.planner.packets.rack import RACK_PORT

SLOTS = 16_000
"""2.7 ms at 200 Gbit/s: at half of it DCQCN is back from its first cuts."""
MOST_SENDERS = 100


@dataclass(frozen=True, slots=True)
class RackReply:
    """What each congestion control makes of senders that meet at one NIC."""

    question: str
    meetings: Mapping[str, Meeting]

    def lines(self) -> list[str]:
        """For a person, one of each control."""
        return [
            f"{name}: {meeting.outcome.goodput:.1%} of the NIC, {meeting.outcome.pauses:,} pauses, "
            f"{meeting.outcome.longest_queue / 1e3:,.0f} kB of queue; a flow to an idle NIC gets {meeting.victim:.0%}"
            for name, meeting in self.meetings.items()
        ]

    def document(self) -> dict[str, object]:
        """For JSON."""
        controls = {
            name: {**asdict(meeting.outcome), "victim": meeting.victim} for name, meeting in self.meetings.items()
        }
        return {"question": self.question, "controls": controls}


def ask(question: str, traffic: StepTraffic, network: Network, slots: int | None = None) -> questions.Reply | RackReply:
    """NetworkError names what is wrong with the question, and what may be asked.

    `slots` of an incast: None is `SLOTS`, 0 simulates nothing and only checks the question.
    """
    kind, _, word = question.partition(":")
    if kind != "incast":
        return questions.ask(question, traffic, network)
    most = min(network.clos.below_a_leaf - 2, MOST_SENDERS)
    if not (word.isascii() and word.isdigit() and len(word) <= 9 and 1 <= int(word) <= most):
        raise NetworkError(
            f"--what-if {question[:60]!r}: write incast:SENDERS, with 1 to {most} NICs that send to one beside them"
        )
    port = replace(RACK_PORT, bytes_per_s=network.clos.nic_bytes_per_s)
    slots = SLOTS if slots is None else slots
    return RackReply(question, incasts(int(word), slots, port=port) if slots else {})
