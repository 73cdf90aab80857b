"""What all jobs share: nodes and the jobs that hold them, the queue of jobs, incidents, alerts, commands."""
