"""The one way in for every event: heartbeats, membership, and what an earlier life of the controller wrote."""
