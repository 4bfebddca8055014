"""Search for the best workflow of a defender of CAGE Challenge 2."""

NAME = "cage2-workflow"
SUMMARY = "a defender that repairs by an order of priority; searches for the best order"
ENVIRONMENTS = ("fastrl/Cage2Workflow-v0",)
NEEDS_ENVIRONMENT = False
EXPERTS = ""
