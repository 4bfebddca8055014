"""Ways of collecting experience, one a file."""
