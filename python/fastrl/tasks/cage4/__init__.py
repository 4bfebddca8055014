"""CAGE Challenge 4."""

NAME = "cage4"
SUMMARY = "five defenders for CAGE Challenge 4, with independent PPO, MAPPO or REINFORCE"
ENVIRONMENTS = ("fastrl/Cage4-v0",)
NEEDS_ENVIRONMENT = False
EXPERTS = ""
BASELINES = ("sleep", "random", "react", "guard")
