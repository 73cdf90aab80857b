"""Diagnoses of nodes: those that people ask for, and those of suspects before they train again."""
