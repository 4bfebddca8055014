"""Games that show images: Atari, Mario."""

NAME = "pixels"
SUMMARY = "Atari, Mario and others that show images, with DQN, SAC, PPO, asynchronous PPO or IMPALA"
ENVIRONMENTS = ("ALE/*", "SuperMarioBros*", "fastrl/Catch*", "*NoFrameskip*")
NEEDS_ENVIRONMENT = True
EXPERTS = ""
