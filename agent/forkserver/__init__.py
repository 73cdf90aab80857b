"""The fork server: one process a node with everything heavy imported, from which workers are forked."""
