"""Grafana dashboards, Prometheus rules, Alertmanager routing: built by code, tested, provisioned."""
