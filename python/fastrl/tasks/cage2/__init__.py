"""CAGE Challenge 2."""

NAME = "cage2"
SUMMARY = "a defender for CAGE Challenge 2, with PPO"
ENVIRONMENTS = ("fastrl/Cage2-v0",)
NEEDS_ENVIRONMENT = False
EXPERTS = "baseline:NAME (CAGE 2)"
BASELINES = ("sleep", "random", "react-remove", "react-restore")
EXPERT_NAMES = ", ".join(BASELINES)
