"""The optimizer on shards, what replicas keep of it, and what it puts on the wire."""
