"""Workflow search on CAGE Challenge 2."""
