"""Turns of workers whose jobs share a node: what a worker and its node's agent send each other, over a Unix socket.

A worker connects and sends its job and its slot in one line. The agent answers with single bytes: `ALONE`, whenever the
worker need not ask, or `SHARED`, whenever it has to; and `TURN` after each `ASK`. The worker sends `BACK` when its turn
is over. A connection that ends gives a turn back.
"""

SHARES = "HOLDFAST_SHARES"
"""In the environment of a program whose job may share its nodes."""
VARIABLE = "HOLDFAST_TURNS"
"""In the environment of its workers: the slot, a colon, and the path of the agent's socket."""
WAITING = "waiting for its turn"
"""The operation of a worker that has asked."""
ALONE, SHARED, TURN = b"A", b"S", b"T"
ASK, BACK = b"?", b"!"
MAX_LINE = 300
