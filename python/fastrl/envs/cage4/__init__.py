"""CAGE Challenge 4."""

from fastrl.envs.registration import register_multi

register_multi("fastrl/Cage4-v0", "fastrl.envs.cage4.env:Cage4VectorEnv")
