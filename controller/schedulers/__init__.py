"""Where nodes come from: an existing scheduler is notified of evicted nodes, and of those that are let in again."""
