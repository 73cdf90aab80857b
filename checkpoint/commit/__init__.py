"""Making a checkpoint exist whole or not at all: which run may write, the commit, which checkpoints stay."""
