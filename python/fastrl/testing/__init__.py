"""Conformance kits: is this environment a correct one? Gymnasium has none for vector environments."""

from fastrl.testing.vector_env import CLAUSES, check_vector_env

__all__ = ["CLAUSES", "check_vector_env"]
