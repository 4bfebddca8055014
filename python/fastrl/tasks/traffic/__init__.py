"""Traffic: vehicles that drive together, each an agent of its own."""

NAME = "traffic"
SUMMARY = "vehicles that drive together, with independent PPO, MAPPO or REINFORCE"
ENVIRONMENTS = ("fastrl/coop-*", "fastrl/ring-*", "fastrl/highway-*")
NEEDS_ENVIRONMENT = False
