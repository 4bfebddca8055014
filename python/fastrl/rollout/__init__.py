"""On-policy storage, rollout fragments, returns."""
