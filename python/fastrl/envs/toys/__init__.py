"""Small environments for tests and benchmarks."""

from gymnasium import register

register("fastrl/BitFlip-v0", entry_point="fastrl.envs.toys.bit_flip:BitFlipEnv")
register("fastrl/Catch-v0", entry_point="fastrl.envs.toys.catch:CatchEnv")
register("fastrl/Uneven-v0", entry_point="fastrl.envs.toys.uneven:UnevenEnv")
