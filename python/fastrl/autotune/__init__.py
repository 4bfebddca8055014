"""Choice of how a run collects and computes on a machine: ``fastrl autotune`` and ``fastrl train --auto``."""
