"""Detectors: small pure classes. Facts and an `Instant` go in, findings come out; none of them acts."""
