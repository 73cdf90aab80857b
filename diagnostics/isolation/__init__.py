"""Which node, or which way between switches, is bad: from tests of pairs to verdicts."""
