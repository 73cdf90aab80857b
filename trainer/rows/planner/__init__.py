"""Rows of the planner: what it finds against every choice there is."""
