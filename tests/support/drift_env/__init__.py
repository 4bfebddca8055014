"""A compiled environment as `fastrl.envs` has them, a folder that registers an id; its simulator is NumPy here."""

from gymnasium import register

register(
    "stub/Drift-v0",
    entry_point="drift_env.env:DriftEnv",
    vector_entry_point="drift_env.env:DriftVectorEnv",
)
