"""Commands of daemons, and of what they are deployed with."""
