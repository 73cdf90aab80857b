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
                    "source_matchers": ['alertname="HoldfastManyNodesDown"'],
                    "target_matchers": ['alertname="HoldfastNodeDown"'],
                    "equal": ["instance"],
                },
                {  # other alerts of a lost node are suppressed
                    "source_matchers": ['alertname="HoldfastNodeDown"'],
                    "target_matchers": ['alertname=~"HoldfastGpu.*|HoldfastHost.*|HoldfastStoreRefuses"'],
                    "equal": ["node"],
                },
                {
                    "source_matchers": ['alertname="HoldfastJobFailed"'],
                    "target_matchers": ['alertname=~"HoldfastJob.*|HoldfastGoodputLow|HoldfastRestartsOften"'],
                    "equal": ["job"],
                },
            ],
            "receivers": [
                {"name": name, "webhook_configs": [{"url": webhook, "send_resolved": True}]}
                for name in ("team", "on-call", "log")
            ],
        }
    )
