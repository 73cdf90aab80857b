"""The past of a job over HTTP."""
