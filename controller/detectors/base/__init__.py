"""The one table of findings with its limits, and the windows that detectors look through."""
