"""Commands that show state and history."""
