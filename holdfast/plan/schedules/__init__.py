"""Schedules: pure functions that return, for each pipeline rank, its list of computations; and the table of them.

Builders return computation only; the passes in `trainer/pipeline` add what goes with it.
"""
