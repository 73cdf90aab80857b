"""Every check: what it is told, what it says, and what its figures are held against."""
