"""CAGE Challenge 2: presets, scoring protocol."""
