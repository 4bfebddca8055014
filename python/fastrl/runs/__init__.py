"""The directory of a run: its settings, checkpoints, facts, metrics, loggers and curves."""
