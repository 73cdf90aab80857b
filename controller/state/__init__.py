"""What the controller knows of nodes, jobs and incidents, and the events that change it: plain data, no I/O."""
