"""The HTTP API, its event streams and `/metrics`."""
