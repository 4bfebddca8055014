"""Traffic: vehicles that drive together, each an agent of its own."""

NAME = "traffic"
SUMMARY = "vehicles that drive together, with independent PPO, MAPPO or REINFORCE"
ENVIRONMENTS = (
    "fastrl/coop-*",
    "fastrl/ring-*",
    "fastrl/highway-*",
    "fastrl/v2x-*",
    "fastrl/lights-*",
    "fastrl/intersection-multi-agent-*",
)
# Of one agent, unless an algorithm for several is named.
ON_REQUEST = (
    "fastrl/merge-*",
    "fastrl/roundabout-*",
    "fastrl/intersection-*",
    "fastrl/exit-*",
    "fastrl/two-way-*",
    "fastrl/lane-keeping-*",
    "fastrl/u-turn-*",
    "fastrl/parking-*",
    "fastrl/racetrack-*",
    "fastrl/road-*",
)
NEEDS_ENVIRONMENT = False
EXPERTS = "driver:NAME (traffic)"
EXPERT_NAMES = "follower-stopper and pi on fastrl/ring-v0, idm on fastrl/highway-v0"
