"""What the nodes send and receive."""

from holdfast.dashboards.spec import Board, Panel, PanelRow, Query, heat, one, worst

BOARD = Board(
    uid="holdfast-network",
    title="Holdfast / Network",
    about="Traffic of the nodes. Millisecond samples are on Holdfast's own page; here are running means.",
    by_job=False,
    rows=(
        PanelRow(
            "Traffic",
            (
                Panel("timeseries", "Sent", "Bytes a node sends, all NICs: the ten that send most.", "Bps",
                      one(worst("holdfast_node_tx_bytes_per_second"), "{{node}}"), 12),
                Panel("timeseries", "Received", "Bytes a node receives, all NICs: the ten that receive most.", "Bps",
                      one(worst("holdfast_node_rx_bytes_per_second"), "{{node}}"), 12),
                Panel("heatmap", "Against the median node", "How many nodes send which share of the median. A few far "
                      "below for long are cut off, degraded, or not in the job.", "short",
                      heat("holdfast_node_tx_bytes_per_second"), 12),
                Panel("timeseries", "Send least", "The ten nodes that send least.", "Bps",
                      one(worst("holdfast_node_tx_bytes_per_second", low=True), "{{node}}"), 12),
            ),
        ),
        PanelRow(
            "NICs",
            (
                Panel("table", "Slowest NICs", "Speed as the NIC negotiated it: the forty slowest.", "Bps",
                      one("bottomk(40, holdfast_nic_speed_bytes_per_second)"), 12),
                Panel("timeseries", "Whole cluster", "All nodes together.", "Bps",
                      (Query("sum(holdfast_node_tx_bytes_per_second)", "sent"),
                       Query("sum(holdfast_node_rx_bytes_per_second)", "received")), 12),
            ),
        ),
    ),
)  # fmt: skip
