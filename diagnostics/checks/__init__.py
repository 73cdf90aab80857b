"""The checks themselves: each takes `Options` and returns one `CheckResult`. Heavy imports happen when one runs."""
