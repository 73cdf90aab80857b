"""What the agent does for its node as a whole: identity, checks, peers, the checkpoint daemon."""
