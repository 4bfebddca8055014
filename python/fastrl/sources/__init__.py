"""Sources of experience for the trainer: rollouts of one agent or many, a replay, recorded data sets."""
