"""Values with a known answer: reward 1 each step, episodes of 10 steps that say nothing of the time, gamma 0.9.

Cut off after 10 steps, what follows counts: Q = 1 + 0.9 Q = 10. Terminated there, a tenth of the steps is followed by
nothing: Q = 1 + 0.9 * 0.9 Q = 5.26.
"""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from small_runs import trainer_of

from fastrl.sources.transitions import TransitionSource


class Ones(gymnasium.Env[Any, Any]):
    observation_space = Box(0, 1, (1,), np.float32)

    def __init__(self, terminates: bool, continuous: bool) -> None:
        self.terminates, self.t = terminates, 0
        self.action_space = Box(-1, 1, (1,), np.float32) if continuous else Discrete(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        over = self.t == 10
        return np.ones(1, np.float32), 1.0, over and self.terminates, over and not self.terminates, {}


class Clock(gymnasium.Env[Any, Any]):
    """Shows and pays its time; episodes take 3 steps."""

    observation_space, action_space = Box(0, 9, (1,), np.float32), Discrete(2)
    t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), float(self.t), self.t == 3, False, {}


def clocks(mode: str, num_envs: int = 3) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([Clock] * num_envs, autoreset_mode=AutoresetMode[mode.upper()])


COMMON = ["--device=cpu", "--run.eval-episodes=0", "--run.torch-threads=1", "--replay.learning-starts=100"]
DQN = [
    "--algo=dqn",
    "--dqn.hidden=[]",
    "--dqn.learning-rate=0.07",
    "--dqn.final-learning-rate=0.01",
    "--dqn.target-every=3",
    "--dqn.huber=10",
]
TD3 = ["--algo=td3", "--td3.hidden=8", "--td3.learning-rate=0.02", "--td3.tau=0.3"]


SAC = [
    "--algo=sac",
    "--sac.hidden=8",
    "--sac.learning-rate=0.02",
    "--sac.tau=0.3",
    "--sac.n-step=1",
    # Values of rewards alone.
    "--no-sac.learn-temperature",
    "--sac.temperature=0",
]


@pytest.mark.parametrize(
    ("options", "terminates"),
    [
        ([*DQN, "--dqn.n-step=1", "--no-dqn.prioritized"], True),
        ([*DQN, "--dqn.n-step=3", "--dqn.prioritized"], False),
        ([*DQN, "--dqn.n-step=1", "--dqn.quantiles=4"], False),
        ([*TD3, "--td3.n-step=1"], False),
        ([*TD3, "--td3.n-step=1"], True),
        (SAC, False),
        (SAC, True),
    ],
    ids=["terminated", "three steps", "quantiles", "td3", "td3 terminated", "sac", "sac terminated"],
)
def test_truncation_is_no_end(options: list[str], terminates: bool) -> None:
    algorithm = options[0].removeprefix("--algo=")
    trainer = trainer_of(
        "gym",
        "--env=test_known_values:Ones",
        "--env.options",
        f"terminates={terminates}".lower(),
        f"continuous={algorithm != 'dqn'}".lower(),
        "--num-envs=1",
        "--collector=sequential",
        "--total-timesteps=320",
        "--replay.updates-per-step=1",
        f"--{algorithm}.gamma=0.9",
        f"--{algorithm}.batch-size=50",
        *COMMON,
        *options,
    )
    list(trainer.rows())
    learner: Any = trainer.algorithm
    obs = torch.ones(1, 1)
    with torch.no_grad():
        if algorithm == "dqn":
            values = learner.network(obs)
        else:
            values = learner.critics(obs, torch.zeros(1, 1))
    # Ends are drawn more or less often than each tenth time.
    assert float(values.mean()) == pytest.approx(1 / (1 - 0.81) if terminates else 10, rel=0.1)


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_steps_that_only_reset_are_no_transitions(mode: str, algorithm: str) -> None:
    trainer = trainer_of(
        "gym",
        "--env=test_known_values:clocks",
        f"--env.options=mode={mode}",
        "--num-envs=3",
        "--total-timesteps=120",
        f"--algo={algorithm}",
        f"--{algorithm}.hidden=8",
        f"--{algorithm}.n-step=1",
        f"--{algorithm}.batch-size=64",
        "--replay.updates-per-step=0.1",
        "--replay.capacity=1000",
        *COMMON,
    )
    list(trainer.rows())
    assert isinstance(trainer.source, TransitionSource)
    sampler, times = trainer.source.minibatches.sampler, set()
    assert sampler is not None
    for _ in range(20):
        batch = sampler.sample()
        # From the last observation of an episode to the first of the next: time 3 to time 0, or 0 to 0.
        assert torch.equal(batch.next_obs, batch.obs + 1)
        assert torch.equal(batch.rewards, batch.next_obs[:, 0])
        assert torch.equal(batch.terminated, batch.rewards == 3)
        assert not batch.truncated.any()
        times |= set(batch.rewards.tolist())
    assert times == {1, 2, 3}
