"""Checks that a node runs on itself or with its neighbours, and the judgement over their results."""
