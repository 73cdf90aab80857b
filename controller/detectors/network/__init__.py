"""Faults that the traffic of training shows: it stops, or a node moves less than its pattern."""
