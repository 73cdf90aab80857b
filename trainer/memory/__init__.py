"""What a rank's memory holds, by kind: worked out before a run, measured in one, and what needs less."""
