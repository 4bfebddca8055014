"""A conformance kit for vector environments, which Gymnasium lacks."""

from fastrl.testing.vector_env import CLAUSES, check_vector_env

__all__ = ["CLAUSES", "check_vector_env"]
