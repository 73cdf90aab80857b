"""The brain: cluster state, detectors, incidents, recovery; around it gRPC, HTTP, metrics and the page."""
