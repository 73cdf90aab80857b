"""Schedules: pure functions that return, for each pipeline rank, its list of actions.

Builders return computation only; the passes in `transfers` and `sharding` add what goes with it.
"""
