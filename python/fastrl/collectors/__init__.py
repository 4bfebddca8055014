"""Collectors: objects that step environments."""
