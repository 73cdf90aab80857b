"""The checkpoint daemon of a node: uploads snapshots, and copies them to other nodes."""
