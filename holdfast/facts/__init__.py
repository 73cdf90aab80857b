"""Facts about the world: what drivers report, what tracebacks say, faults on purpose by name."""
