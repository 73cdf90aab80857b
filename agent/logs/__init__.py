"""Workers' output on disk and in memory, and the rules that log lines are held against."""
