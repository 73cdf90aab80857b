"""Facts: what drivers report, what tracebacks say, names of the faults to inject."""
