"""Measurements of ``fastrl bench``."""
