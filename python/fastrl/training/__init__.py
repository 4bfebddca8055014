"""The trainer, its loop, and the protocols of tasks and callbacks."""
