"""Policies that play: one iterator of episodes, and what films, scores and predictions need of it."""
