"""Checks that a node runs on itself or with its peers, and pure judgement: verdicts, isolation, hangs, blame.

What measures (checks, collective, hardware, mover) runs in a process of its own, `python -m holdfast.diagnostics
CHECK…`; a controller imports the rest only.
"""
