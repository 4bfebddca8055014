"""The trainer and what a run writes."""
