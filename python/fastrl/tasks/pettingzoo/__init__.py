"""Any parallel environment of PettingZoo."""

NAME = "pettingzoo"
SUMMARY = "any parallel environment of PettingZoo, with independent PPO, MAPPO or REINFORCE"
# As general as the pattern of Gymnasium's factories, and less specific: `fastrl.tasks.task_for` looks at the factory.
ENVIRONMENTS = ("*[:]*",)
NEEDS_ENVIRONMENT = True
EXPERTS = ""
