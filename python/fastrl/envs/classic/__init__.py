"""Classic control: Gymnasium's tasks, compiled."""

from gymnasium import register

# Gymnasium's time limits, by its ids.
IDS = {
    "CartPole-v1": 500,
    "Pendulum-v1": 200,
    "Acrobot-v1": 500,
    "MountainCar-v0": 200,
    "MountainCarContinuous-v0": 999,
}

for _id, _steps in IDS.items():
    register(
        f"fastrl/{_id}",
        entry_point="fastrl.envs.classic.control:ClassicEnv",
        vector_entry_point="fastrl.envs.classic.control:ClassicVectorEnv",
        max_episode_steps=_steps,
        kwargs={"task": _id.partition("-")[0]},
    )
