"""Compiled modules and their stubs."""
