"""Any environment of Gymnasium."""

NAME = "gym"
SUMMARY = "any environment of Gymnasium, with PPO, asynchronous PPO, IMPALA or DQN"
ENVIRONMENTS = ("*-v[0-9]*", "*:*")
NEEDS_ENVIRONMENT = True
EXPERTS = ""
