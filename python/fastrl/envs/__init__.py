"""Environments. Importing this package loads no torch."""

from fastrl.envs.cage2 import Cage2Env, Cage2VectorEnv
from fastrl.envs.vector import NativeVectorEnv

__all__ = ["Cage2Env", "Cage2VectorEnv", "NativeVectorEnv"]
