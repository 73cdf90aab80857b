"""The one way in for every event: heartbeats, membership, and the journal of an earlier run of the controller."""
