"""An Alertmanager that wakes people for symptoms only, and does not repeat itself in a storm."""

from holdfast.dashboards.prometheus import dump


def config(webhook: str) -> str:
    """Everything goes to `webhook`; receivers for paging and mail are to be filled in beside it."""
    return dump(
        {
            "route": {
                "receiver": "team",
                "group_by": ["alertname", "job"],
                "group_wait": "10s",
                "group_interval": "1m",
                "repeat_interval": "4h",
                "routes": [
                    {
                        "receiver": "on-call",
                        "matchers": ['severity="page"'],
                        "group_wait": "0s",
                        "repeat_interval": "30m",
                    },
                    {"receiver": "log", "matchers": ['severity="info"'], "repeat_interval": "24h"},
                ],
            },
            "inhibit_rules": [
                {  # a lost switch is one alert, not one for each of its nodes
                    "source_matchers": ['alertname=~"HoldfastManyNodesDown|HoldfastSwitchDown"'],
                    "target_matchers": ['alertname=~"HoldfastNodeDown|HoldfastNodeFlaps"'],
                    "equal": ["instance"],
                },
                {  # nor a second page for the same nodes
                    "source_matchers": ['alertname="HoldfastSwitchDown"'],
                    "target_matchers": ['alertname="HoldfastManyNodesDown"'],
                    "equal": ["instance"],
                },
                {  # the one says what is slow, the other only that something is
                    "source_matchers": ['alertname="HoldfastStragglerCosts"'],
                    "target_matchers": ['alertname="HoldfastThroughputDropped"'],
                    "equal": ["job"],
                },
                {  # other alerts of a lost node are suppressed
                    "source_matchers": ['alertname="HoldfastNodeDown"'],
                    "target_matchers": ['alertname=~"HoldfastGpu.*|HoldfastHost.*|HoldfastNodeFlaps"'],
                    "equal": ["node"],
                },
                {
                    "source_matchers": ['alertname="HoldfastJobFailed"'],
                    "target_matchers": ['alertname=~"HoldfastGoodputLow|HoldfastRestartsOften|HoldfastNoCheckpoint"'],
                    "equal": ["job"],
                },
            ],
            "receivers": [
                {"name": name, "webhook_configs": [{"url": webhook, "send_resolved": True}]}
                for name in ("team", "on-call", "log")
            ],
        }
    )
