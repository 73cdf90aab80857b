"""The file through which a worker reports to its agent what it does, and receives the fault to inject."""
