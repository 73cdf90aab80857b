"""Commands that run a job, or send requests to a running job."""
