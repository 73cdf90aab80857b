"""The per-node daemon: collectors, sampler, worker supervision, the link to the controller; and the probe."""
