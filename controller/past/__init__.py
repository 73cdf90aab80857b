"""What a job was: moments of its past, and the day and the instant that are made of them. Pure."""
