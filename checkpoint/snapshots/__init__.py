"""Snapshots of workers in their node's shared memory: stage 1."""
