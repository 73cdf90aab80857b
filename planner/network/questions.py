"""What a person asks of a network in a few letters: `leaf:3`, `order:dp-tp-pp`, `flap:8s`. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from holdfast.base.settings import parse_seconds
from holdfast.planner.network.errors import NetworkError
from holdfast.planner.network.network import Network
from holdfast.planner.network.traffic import BEST, ORDERS, StepTraffic
from holdfast.planner.network.what_if import Answer, Flap, answer, flap

FORMS = (
    "leaf:N",
    "middle:POD:N",
    "order:" + "|".join(ORDERS),
    "oversubscription:N",
    "connections:N",
    "flap:SECONDS[:NCCL_IB_TIMEOUT[:NCCL_IB_RETRY_CNT]]",
    "incast:SENDERS",  # in holdfast.planner.packets.questions
)
IB_TIMEOUT, IB_RETRIES = 20, 7
"""NCCL's defaults of today."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: of transfers on a changed network, or of a flap."""

    question: str
    answer: Answer | None = None
    flap: Flap | None = None

    def document(self) -> dict[str, object]:
        """For JSON; seconds of what never ends are None."""
        found = self.answer if self.answer is not None else self.flap
        values = asdict(found) if found is not None else {}
        never = {name: None for name, value in values.items() if value == math.inf}  # JSON has no infinity
        return {"question": self.question, **values, **never}


def ask(question: str, traffic: StepTraffic, network: Network) -> Reply:
    """NetworkError names what is wrong with the question, and what may be asked."""
    kind, _, rest = question.partition(":")
    words = rest.split(":") if rest else []
    match kind, words:
        case "leaf", [which]:
            return Reply(question, answer(traffic, network.without_leaf(_number(question, which))))
        case "middle", [pod, which]:
            lost = network.without_middle(_number(question, pod), _number(question, which))
            return Reply(question, answer(traffic, lost))
        case "order", [order]:
            return Reply(question, answer(traffic, network, order))
        case "oversubscription", [times]:
            clos = replace(network.clos, oversubscription=float(_number(question, times)))
            return Reply(question, answer(traffic, replace(network, clos=clos)))
        case "connections", [count]:
            return Reply(question, answer(traffic, replace(network, connections=_number(question, count))))
        case "flap", [seconds, *times] if len(times) <= 2:
            timeout, retries = (*(_number(question, one) for one in times), *(IB_TIMEOUT, IB_RETRIES)[len(times) :])
            if timeout not in range(1, 32) or retries not in range(8):
                raise NetworkError(f"--what-if {question[:60]!r}: NCCL_IB_TIMEOUT is 1 to 31, NCCL_IB_RETRY_CNT 0 to 7")
            return Reply(question, None, flap(traffic, network, 0, _seconds(question, seconds), timeout, retries))
    raise NetworkError(f"--what-if {question[:60]!r} is no question: write one of {', '.join(FORMS)}")


def now(traffic: StepTraffic, network: Network) -> Reply:
    """Nothing is changed."""
    return Reply("as it is", answer(traffic, network, BEST))


def _number(question: str, word: str) -> int:
    if not word.isascii() or not word.isdigit() or len(word) > 9:
        raise NetworkError(f"--what-if {question[:60]!r}: {word[:20]!r} is no number")
    return int(word)


def _seconds(question: str, word: str) -> float:
    try:
        return parse_seconds(word)
    except ValueError:
        raise NetworkError(f"--what-if {question[:60]!r}: {word[:20]!r} is no time: write 8s") from None
