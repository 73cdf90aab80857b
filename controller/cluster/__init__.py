"""What all jobs share: nodes and who holds them, the queue of jobs, incidents, alerts, commands."""
