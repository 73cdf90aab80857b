"""Spans of many ranks on one clock, and a step as a graph that can be played again."""
