"""Commands that run a job, or ask something of a running one."""
