"""Shared code of the commands: options, output, the client of the HTTP API."""
