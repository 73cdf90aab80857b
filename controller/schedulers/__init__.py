"""Where nodes come from: an existing scheduler is told whom we took out and whom we let in again."""
