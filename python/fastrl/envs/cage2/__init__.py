"""CAGE Challenge 2."""

from gymnasium import register

from fastrl.envs.registration import register_multi

register(
    "fastrl/Cage2-v0",
    entry_point="fastrl.envs.cage2.env:Cage2Env",
    vector_entry_point="fastrl.envs.cage2.env:Cage2VectorEnv",
)
register(
    "fastrl/Cage2Rows-v0",
    entry_point="fastrl.envs.cage2.rows:Cage2RowsEnv",
    vector_entry_point="fastrl.envs.cage2.rows:Cage2RowsVectorEnv",
)
register("fastrl/Cage2Workflow-v0", vector_entry_point="fastrl.envs.cage2.workflow:Cage2WorkflowVectorEnv")
register_multi("fastrl/Cage2Game-v0", "fastrl.envs.cage2.game:Cage2GameVectorEnv")
