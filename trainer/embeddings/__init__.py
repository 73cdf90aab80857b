"""Embedding tables on servers, and trainers that cache exactly the rows that the next batches need (Bagpipe)."""
