"""The stream to the controller, and what heartbeats hold."""
