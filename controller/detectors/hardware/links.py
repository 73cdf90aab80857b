"""Network ports by their counters: down, flapping, losing, congested.

Counters never say enough alone: a port that is reset on purpose counts too, and every busy network retransmits a
little. So downs must last, errors must come in numbers within an hour, and congestion must be far above this node's
own usual rate.
"""

from collections.abc import Iterable, Mapping

from holdfast.controller.detectors.base.table import Tuning, finding
from holdfast.controller.detectors.base.windows import BoundedDict, GrowthWindow, Latch, RateWindow
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.wire import types as t

_K = t.FindingKind
_ACTIVE = 4.0  # RDMA port state
_HOUR = 3600.0
_DROP = frozenset({"link_downed"})
_BROKEN = frozenset({"excessive_buffer_overrun_errors", "local_link_integrity_errors", "rnr_nak_retry_err"})
_ERRORS = frozenset({
    "symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors", "port_xmit_discards", "link_error_recovery",
    "rx_icrc_encapsulated", "rx_crc_errors", "rx_frame_errors", "rx_fifo_errors", "tx_carrier_errors", "tx_fifo_errors",
})  # fmt: skip
_RETRANSMITS = frozenset({
    "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "implied_nak_seq_err", "roce_adp_retrans",
    "roce_adp_retrans_to", "roce_slow_restart", "duplicate_request",
})  # fmt: skip
_CONGESTION = frozenset({
    "np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets", "port_xmit_wait", "rx_pause", "tx_pause",
})  # fmt: skip
_WATCHED = _DROP | _BROKEN | _ERRORS | _RETRANSMITS | _CONGESTION


class _Keys:
    """Which gauges of a node matter, by port: looked up once, since there are hundreds of them every few seconds."""

    def __init__(self, host: Mapping[str, float], sampled: Iterable[str]) -> None:
        self.known = len(host)
        self.ports: dict[str, dict[str, str]] = {}  # port -> counter -> gauge
        names = set(sampled)
        for gauge in host:
            kind, _, rest = gauge.partition("/")
            port, _, counter = rest.rpartition("/")
            if kind == "rdma":
                device, _, number = port.rpartition("/")
                port = device if number == "1" else port
            elif kind != "net" or port not in names:
                continue  # an interface that carries no training is not reported
            if counter in _WATCHED or counter in ("state", "up", "carrier_changes"):
                self.ports.setdefault(port, {})[counter] = gauge


class LinkDetector:
    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._latch = Latch()
        self._hour = GrowthWindow(_HOUR)
        self._flaps = GrowthWindow(tuning.limit(_K.LINK_FLAP, "window_seconds"))
        self._rates: BoundedDict[str, RateWindow] = BoundedDict()
        self._keys: BoundedDict[str, _Keys] = BoundedDict()
        self._seen_up: BoundedDict[tuple[str, str], bool] = BoundedDict()

    def observe(self, node: Node, frame: t.Frame, training: bool, now: Instant) -> list[Finding]:
        """`node.host` is fresh. `training`: every worker of the node is."""
        host = node.host
        keys = self._keys.get(node.name)
        if keys is None or keys.known != len(host):
            keys = self._keys[node.name] = _Keys(host, [nic.name for nic in frame.nics])
        found: list[Finding] = []
        for port, gauges in keys.ports.items():
            values = {counter: host[gauge] for counter, gauge in gauges.items() if gauge in host}
            found += self._state(node.name, port, values, now)
            found += self._errors(node.name, port, values, now)
            found += self._congestion(node.name, port, values, training, now)
        return found

    def _state(self, node: str, port: str, values: Mapping[str, float], now: Instant) -> list[Finding]:
        found = []
        key = node, port
        if "state" in values or "up" in values:
            up = values.get("state", _ACTIVE) == _ACTIVE and values.get("up", 1.0) > 0
            if up:
                self._seen_up[key] = True
            hold = self._tuning.limit(_K.LINK_DOWN, "seconds")
            # A port that was never up is not plugged in: not reported.
            if self._latch.see((_K.LINK_DOWN, key), not up and key in self._seen_up, now.mono, hold):
                found.append(_says(_K.LINK_DOWN, node, port, f"is down for {hold:.0f} s", now, {}, seconds=hold))
        # The carrier goes and comes back: two changes.
        changes = self._flaps.see((key, "carrier"), values.get("carrier_changes", 0.0), now.mono) / 2
        drops = self._flaps.see((key, "drops"), values.get("link_downed", 0.0), now.mono)
        times, limits = max(changes, drops), self._tuning.limits(_K.LINK_FLAP)
        if self._latch.see((_K.LINK_FLAP, key), times >= limits["times"], now.mono, 0.0, _HOUR):
            text = f"went down {times:.0f} times within {limits['window_seconds'] / _HOUR:g} h"
            found.append(_says(_K.LINK_FLAP, node, port, text, now, {"times": times}))
        return found

    def _errors(self, node: str, port: str, values: Mapping[str, float], now: Instant) -> list[Finding]:
        limits = self._tuning.limits(_K.NETWORK_ERRORS)
        groups = (
            ("broken", _BROKEN, limits["severe_per_hour"], "errors that no healthy link has"),
            ("errors", _ERRORS, limits["errors_per_hour"], "link errors"),
            ("retransmits", _RETRANSMITS, limits["retransmits_per_hour"], "retransmitted or out-of-order packets"),
        )
        found = []
        for name, counters, limit, what in groups:
            grown = {c: self._hour.see((node, port, c), values[c], now.mono) for c in counters if c in values}
            total = sum(grown.values())
            if self._latch.see((name, node, port), total >= limit, now.mono, 0.0, _HOUR):
                counts: dict[str, object] = {c: n for c, n in sorted(grown.items()) if n}
                text = f"counted {total:.0f} {what} within an hour: {', '.join(counts)}"
                found.append(_says(_K.NETWORK_ERRORS, node, port, text, now, counts, signature=name))
        return found

    def _congestion(
        self, node: str, port: str, values: Mapping[str, float], training: bool, now: Instant
    ) -> list[Finding]:
        limits = self._tuning.limits(_K.NETWORK_CONGESTION)
        found = []
        rates = self._rates.setdefault(node, RateWindow(limits["seconds"]))
        for counter in sorted(_CONGESTION & values.keys()):
            if not training:  # an idle network says nothing of a busy one
                rates.skip((port, counter), values[counter], now.mono)
                continue
            floor = limits["wait_per_s"] if counter == "port_xmit_wait" else limits["per_s"]
            rate, usual = rates.see((port, counter), values[counter], now.mono)
            high = rate > floor and rate > limits["times"] * usual
            if self._latch.see((counter, node, port), high, now.mono, limits["seconds"], 600.0):
                text = f"is congested: {counter} grows by {rate:.0f} per second, usually by {usual:.0f}"
                said: dict[str, object] = {"per_s": rate, "usual_per_s": usual, "floor_per_s": floor}
                found.append(_says(_K.NETWORK_CONGESTION, node, port, text, now, said, signature=counter))
        return found


def _says(
    kind: t.FindingKind,
    node: str,
    port: str,
    text: str,
    now: Instant,
    evidence: Mapping[str, object],
    signature: str = "",
    seconds: float = 0.0,
) -> Finding:
    name = f"{node}/{port}"
    said = {"port": port, **evidence}
    return finding(kind, name, f"{name} {text}", now, node=node, signature=signature, seconds=seconds, evidence=said)
