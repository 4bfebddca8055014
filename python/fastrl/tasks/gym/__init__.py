"""Any environment of Gymnasium."""

NAME = "gym"
SUMMARY = "any environment of Gymnasium, with PPO, asynchronous PPO or IMPALA"
ENVIRONMENTS = ("*-v[0-9]*", "*:*")
NEEDS_ENVIRONMENT = True
