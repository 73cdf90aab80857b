"""A small but faithful sysfs: RDMA devices and network interfaces as the kernel lays them out."""

import os
from dataclasses import dataclass
from pathlib import Path

COUNTERS = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
]
HW_COUNTERS = [
    "duplicate_request",
    "implied_nak_seq_err",
    "lifespan",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "rx_atomic_requests",
    "rx_icrc_encapsulated",
    "rx_read_requests",
    "rx_write_requests",
]
RXE_COUNTERS = [
    "ack_deferred",
    "completer_retry_err",
    "duplicate_request",
    "lifespan",
    "link_downed",
    "out_of_seq_request",
    "rcvd_pkts",
    "rcvd_rnr_err",
    "rcvd_seq_err",
    "rdma_recvs",
    "rdma_sends",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "send_err",
    "send_rnr_err",
    "sent_pkts",
]
"""Of soft-RoCE (drivers/infiniband/sw/rxe): all that it counts. There is no `counters` folder since kernel 5.14."""
STATISTICS = [
    "collisions",
    "multicast",
    "rx_bytes",
    "rx_crc_errors",
    "rx_dropped",
    "rx_errors",
    "rx_fifo_errors",
    "rx_frame_errors",
    "rx_length_errors",
    "rx_missed_errors",
    "rx_over_errors",
    "rx_packets",
    "tx_aborted_errors",
    "tx_bytes",
    "tx_carrier_errors",
    "tx_compressed",
    "tx_dropped",
    "tx_errors",
    "tx_fifo_errors",
    "tx_heartbeat_errors",
    "tx_packets",
    "tx_window_errors",
]


def put(path: Path, text: str | int) -> None:
    """Write a file in place, as the kernel changes a value under an open descriptor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = f"{text}\n".encode()
    opened = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(opened, data, 0)  # at no instant is the file empty: a sampler reads the old value or the new one
        os.ftruncate(opened, len(data))
    finally:
        os.close(opened)


@dataclass(frozen=True)
class Sysfs:
    root: Path

    @property
    def path(self) -> str:
        return str(self.root)

    def rdma(
        self,
        device: str,
        state: str = "4: ACTIVE",
        phys: str = "5: LinkUp",
        rate: str = "400 Gb/sec (4X NDR)",
        layer: str = "InfiniBand",
        numa: int = 0,
        port: int = 1,
    ) -> Path:
        """One port with all counters at 0; gives the port's folder."""
        base = self.root / "class/infiniband" / device
        folder = base / "ports" / str(port)
        for name, text in (("state", state), ("phys_state", phys), ("rate", rate), ("link_layer", layer)):
            put(folder / name, text)
        for name in COUNTERS:
            put(folder / "counters" / name, 0)
        for name in HW_COUNTERS:
            put(folder / "hw_counters" / name, 10 if name == "lifespan" else 0)
        put(base / "device/numa_node", numa)
        put(base / "node_guid", "0c42:a103:00aa:bb01")
        return folder

    def rxe(self, device: str, no_pma: bool = False) -> Path:
        """A soft-RoCE device. `no_pma`: as kernels before 5.14 show a device that cannot be asked for counters."""
        base = self.root / "class/infiniband" / device
        folder = base / "ports/1"
        put(folder / "state", "4: ACTIVE")
        put(folder / "phys_state", "5: LinkUp")
        put(folder / "rate", "2.5 Gb/sec (1X SDR)")
        put(folder / "link_layer", "Ethernet")
        for name in RXE_COUNTERS:
            put(folder / "hw_counters" / name, 10 if name == "lifespan" else 0)
        for name in COUNTERS if no_pma else ():
            put(folder / "counters" / name, "N/A (no PMA)")
        put(base / "parent", "eth0")
        return folder

    def net(
        self, name: str, operstate: str = "up", speed: str | int = 25000, physical: bool = True, numa: int = 0
    ) -> Path:
        """One interface with all statistics at 0; gives its `statistics` folder."""
        base = self.root / "class/net" / name
        put(base / "operstate", operstate)
        put(base / "speed", speed)
        put(base / "carrier_changes", 1)
        for statistic in STATISTICS:
            put(base / "statistics" / statistic, 0)
        if physical:
            put(base / "device/numa_node", numa)
        return base / "statistics"
