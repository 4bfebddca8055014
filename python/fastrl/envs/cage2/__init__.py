"""CAGE Challenge 2."""

from gymnasium import register

register(
    "fastrl/Cage2-v0",
    entry_point="fastrl.envs.cage2.env:Cage2Env",
    vector_entry_point="fastrl.envs.cage2.env:Cage2VectorEnv",
)
register("fastrl/Cage2Workflow-v0", vector_entry_point="fastrl.envs.cage2.workflow:Cage2WorkflowVectorEnv")
