"""Small environments for tests and examples."""
