"""Shares of embedding tables in processes of their own: the tables, their snapshots, and how others reach them."""
