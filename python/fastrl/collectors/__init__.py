"""Collectors: who steps environments."""
