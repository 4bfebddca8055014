"""Experts and environments for tests of recordings."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Text
from gymnasium.spaces import Dict as DictSpace


def balance(obs: Any) -> int:
    """Holds CartPole's pole for some hundred steps."""
    return int(3 * obs[2] + obs[3] > 0)


def swing(obs: Any) -> Any:
    """A torque for Pendulum, float32."""
    return np.clip(np.float32([-2 * obs[2]]), -2, 2)


def first_word(obs: Any) -> int:
    """Reads a text and a large float64."""
    return int(obs["mission"] == "left") + 2 * int(obs["count"][0] % 2)


def raising(obs: Any) -> int:
    if abs(obs[2]) > 0.1:
        raise ZeroDivisionError("the pole leans")
    return 0


def nonsense(obs: Any) -> Any:
    return 2 if abs(obs[2]) > 0.1 else 0


def not_a_number(obs: Any) -> Any:
    return [np.nan]


def not_finite(obs: Any) -> Any:
    return np.float32([np.nan])


def too_strong(obs: Any) -> Any:
    return np.float32([5])


def two_numbers(obs: Any) -> Any:
    return np.float32([1, 1])


def loads_no_torch(obs: Any) -> int:
    assert "torch" not in sys.modules
    return 0


class Letters(gymnasium.Env[Any, Any]):
    """Observations of a Dict with a text, numbers beyond 2**24 of float64, and an empty-looking one."""

    observation_space = DictSpace(
        mission=Text(20), count=Box(0, np.inf, (2,), np.float64), stage=Discrete(3, start=5)
    )
    action_space = Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._step = 0
        return self._obs(), {"side": 0, "vector": np.arange(3.0)}

    def _obs(self) -> Any:
        return {
            "mission": str(self.np_random.choice(["left", "right", ""])),
            "count": 2.0**40 + self.np_random.integers(2**20, size=2),
            "stage": np.int64(5 + self._step % 3),
        }

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self._step += 1
        info = {"side": int(action), "vector": self.np_random.random(3)}
        if self._step % 2:
            info["odd"] = self._step
        return self._obs(), 1 / (self._step + int(action)), self._step == 4, False, info


class OneStep(gymnasium.Env[Any, Any]):
    """Episodes of one step."""

    observation_space = Box(0, 255, (4, 4, 1), np.uint8)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.low + self.np_random.integers(255, dtype=np.uint8), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.high, 0.1, True, False, {}


class Broken(gymnasium.Env[Any, Any]):
    """Episodes of three steps, float64; from its fifth one on, the observation after step 2 has a NaN."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space = Discrete(2)
    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episodes, self._step = self.episodes + 1, 0
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        value = np.nan if self.episodes >= 5 and self._step == 2 else 0.5
        return np.array([self._step, value]), 1.0, self._step == 3, False, {}


class Dying(gymnasium.Env[Any, Any]):
    """CartPole whose process kills itself at the end of the episode number ``at`` that is played in it, once: a file
    remembers."""

    def __new__(cls, at: int, remembered: str) -> Any:
        inner = gymnasium.make("CartPole-v1", max_episode_steps=20)

        class Wrapped(gymnasium.Wrapper[Any, Any, Any, Any]):
            played = 0

            def reset(self, **options: Any) -> Any:
                self.played += 1
                if self.played == at and not Path(remembered).exists():
                    Path(remembered).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().reset(**options)

        return Wrapped(inner)


def two_cartpoles() -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs=2)


def slow_cartpole(seconds: float = 0.002) -> Any:
    """CartPole whose steps take some time."""

    class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            time.sleep(seconds)
            return super().step(action)

    return Slow(gymnasium.make("CartPole-v1"))


class Submission:
    """A defender with the interface of CAGE Challenge 2, which acts by how long its episode is."""

    def set_initial_values(self, action_space, observation):
        self.actions = action_space

    def end_episode(self):
        self.steps = 0

    def get_action(self, observation, action_space):
        assert observation.shape == (52,) and self.actions == action_space == 145
        self.steps += 1
        # Every second action is among those that never have an effect.
        return 132 + self.steps % 13 if self.steps % 2 else 28
