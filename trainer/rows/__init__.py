"""Decisive checks of training techniques: what a source says of each, and what comes out here."""
