"""Repeat what is seen: a task of a user's own. It touches nothing of the package."""

NAME = "echo"
SUMMARY = "agents that repeat what they see"
ENVIRONMENTS = ("echo_task.task:Echo",)
