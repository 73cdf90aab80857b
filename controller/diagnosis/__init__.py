"""Diagnoses of nodes: those that operators ask for, and those of suspects before they train again."""
