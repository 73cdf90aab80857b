"""Making a checkpoint exist whole or not at all: who may write, the commit, which ones stay."""
