"""Networks, action spaces and the compiled actor."""
