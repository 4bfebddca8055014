"""Learning from pixels."""
