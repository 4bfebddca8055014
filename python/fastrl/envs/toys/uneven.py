"""A slow environment whose steps take uneven times, to measure the cost of barriers between environments."""

import time
from typing import Any, Literal, SupportsFloat, get_args

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Distribution = Literal["constant", "exponential", "lognormal", "bimodal"]

# A bimodal distribution: the share of slow steps, and their duration relative to the others.
SLOW_SHARE, SLOW_FACTOR = 0.05, 20.0


class UnevenEnv(gymnasium.Env[Any, Any]):
    """An environment whose steps take random times; registered as ``fastrl/Uneven-v0``.

    Durations, observations and lengths depend on the episode's seed only, so the same episodes cost the same time in
    every collector. Observations are float32 [obs_size], uniform from -1 to 1; the reward is 1 if the action is 1 and
    the first of these numbers is positive, or the action is 0 and it is not; else 0. A fixed length is a time limit
    (``truncated``), a drawn one an end (``terminated``). ``info["seconds"]`` is the duration of the step or reset.

    Attributes:
        durations: float64 [T], seconds of each step of the episode.

    Args:
        step_seconds: mean duration of a step.
        distribution: "constant"; "exponential"; "lognormal", with ``sigma``; "bimodal", in which a twentieth of the
            steps takes 20 times as long as the others.
        sigma: standard deviation of the logarithm of a lognormal duration. With 1.5 the slowest of eight takes 4.4
            times the mean.
        busy: steps compute for that long, in CPU time, like a slow simulator; otherwise they sleep, like an environment
            that waits for another machine.
        length: steps of an episode, or their mean if they are drawn.
        drawn: lengths are drawn uniformly from 1 to ``2 * length - 1``.
        reset_seconds: duration of a reset.
        obs_size: numbers in an observation.

    Raises:
        ValueError: a size below 1, a time below 0, or an unknown distribution.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - as Gymnasium has it

    def __init__(
        self,
        step_seconds: float = 0.002,
        distribution: Distribution = "lognormal",
        sigma: float = 1.5,
        busy: bool = False,
        length: int = 100,
        drawn: bool = False,
        reset_seconds: float = 0.0,
        obs_size: int = 8,
    ) -> None:
        if distribution not in get_args(Distribution):
            choices = ", ".join(get_args(Distribution))
            raise ValueError(f"distribution should be one of {choices}, got {distribution!r}")
        if length < 1 or obs_size < 1:
            raise ValueError(f"length and obs_size should be at least 1, got {length} and {obs_size}")
        if not (step_seconds >= 0 and reset_seconds >= 0 and sigma >= 0):
            raise ValueError(
                "step_seconds, reset_seconds and sigma should be at least 0, got"
                f" {step_seconds}, {reset_seconds} and {sigma}"
            )
        self.observation_space: Box = Box(-1.0, 1.0, (obs_size,), np.float32)
        self.action_space: Discrete = Discrete(2)
        self.step_seconds, self.reset_seconds = step_seconds, reset_seconds
        self.distribution, self.sigma = distribution, sigma
        self.length, self.drawn = length, drawn
        self._wait = compute if busy else time.sleep
        self.durations: NDArray[np.float64] = np.zeros(0)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        random = self.np_random
        steps = int(random.integers(1, 2 * self.length)) if self.drawn else self.length
        self.durations = self.step_seconds * self.draw(random, steps)
        self._obs = random.random((steps + 1, *self.observation_space.shape), np.float32) * 2 - 1
        self._step = 0
        self._take(self.reset_seconds)
        return self._obs[0].copy(), {"seconds": self.reset_seconds}

    def draw(self, random: np.random.Generator, steps: int) -> NDArray[np.float64]:
        """Durations of the steps, of mean 1."""
        if self.distribution == "exponential":
            return random.exponential(1.0, steps)
        if self.distribution == "lognormal":
            return random.lognormal(-(self.sigma**2) / 2, self.sigma, steps)
        if self.distribution == "bimodal":
            slow = random.random(steps) < SLOW_SHARE
            return np.where(slow, SLOW_FACTOR, 1.0) / (1 + SLOW_SHARE * (SLOW_FACTOR - 1))
        return np.ones(steps)

    def step(self, action: SupportsFloat) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self._step == len(self.durations):
            raise RuntimeError("no episode is running: call reset() before the next step()")
        chosen = int(action)  # type: ignore[call-overload]
        if chosen not in (0, 1):
            raise ValueError(f"action should be 0 or 1, got {action}")
        reward = float(chosen == (self._obs[self._step, 0] > 0))
        seconds = float(self.durations[self._step])
        self._take(seconds)
        self._step += 1
        over = self._step == len(self.durations)
        obs = self._obs[self._step].copy()
        return obs, reward, over and self.drawn, over and not self.drawn, {"seconds": seconds}

    def _take(self, seconds: float) -> None:
        # Even time.sleep(0) is a system call.
        if seconds > 0:
            self._wait(seconds)


def compute(seconds: float) -> None:
    """Computes until this thread has used that many seconds of CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
