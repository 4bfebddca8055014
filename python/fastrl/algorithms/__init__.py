"""Learning algorithms, one a file: its configuration, its pure loss functions, its update."""
