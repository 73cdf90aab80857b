"""What the nodes send and receive."""

from holdfast.dashboards.spec import Board, Panel, PanelRow, Query, one

_NODE = '{node=~"$node"}'

BOARD = Board(
    uid="holdfast-network",
    title="Holdfast / Network",
    about="Traffic of the nodes. Millisecond samples are on Holdfast's own page; here are running means.",
    by_job=False,
    by_node=True,
    rows=(
        PanelRow(
            "Traffic",
            (
                Panel("timeseries", "Sent", "Bytes each node sends, all NICs.", "Bps",
                      one(f"holdfast_node_tx_bytes_per_second{_NODE}", "{{node}}"), 12),
                Panel("timeseries", "Received", "Bytes each node receives, all NICs.", "Bps",
                      one(f"holdfast_node_rx_bytes_per_second{_NODE}", "{{node}}"), 12),
                Panel("timeseries", "Against the median node", "A node far below its peers for long is cut off, "
                      "degraded, or not in the job.", "short",
                      one(f"holdfast_node_tx_bytes_per_second{_NODE} / scalar(quantile(0.5, "
                          "holdfast_node_tx_bytes_per_second > 0))", "{{node}}"), 12),
                Panel("timeseries", "Sent against received", "1 is balanced; far from it over a whole step is "
                      "one-sided.", "short",
                      one(f"holdfast_node_tx_bytes_per_second{_NODE} / "
                          f"(holdfast_node_rx_bytes_per_second{_NODE} > 0)", "{{node}}"), 12),
            ),
        ),
        PanelRow(
            "NICs",
            (
                Panel("table", "What the NICs can carry", "Speed as the NIC negotiated it.", "Bps",
                      one(f"holdfast_nic_speed_bytes_per_second{_NODE}"), 12),
                Panel("timeseries", "Whole cluster", "All nodes together.", "Bps",
                      (Query("sum(holdfast_node_tx_bytes_per_second)", "sent"),
                       Query("sum(holdfast_node_rx_bytes_per_second)", "received")), 12),
            ),
        ),
    ),
)  # fmt: skip
