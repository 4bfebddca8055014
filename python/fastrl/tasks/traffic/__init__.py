"""Traffic: vehicles that drive together, each an agent of its own."""

NAME = "traffic"
SUMMARY = "vehicles that drive together, with independent PPO, MAPPO or REINFORCE"
ENVIRONMENTS = ("fastrl/coop-*", "fastrl/ring-*", "fastrl/highway-*", "fastrl/v2x-*")
NEEDS_ENVIRONMENT = False
EXPERTS = "driver:NAME (traffic)"
EXPERT_NAMES = "follower-stopper and pi on fastrl/ring-v0, idm on fastrl/highway-v0"
