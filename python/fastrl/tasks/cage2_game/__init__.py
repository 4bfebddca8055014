"""CAGE Challenge 2 as a game of two agents."""

NAME = "cage2-game"
SUMMARY = "both sides of CAGE Challenge 2, or one side against frozen opponents"
ENVIRONMENTS = ("fastrl/Cage2Game-v0",)
NEEDS_ENVIRONMENT = False
EXPERTS = ""
