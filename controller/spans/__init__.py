"""What workers timed and agents sampled, in memory and on disk, within bounds."""
