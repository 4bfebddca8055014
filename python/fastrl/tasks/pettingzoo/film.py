"""Films of parallel environments of PettingZoo."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.adapters.parallel import ParallelVectorEnv
from fastrl.networks.multi_agent import MultiAgentPolicy
from fastrl.training.errors import TrainError
from fastrl.training.film import FPS, Films, Picture, checked_picture, playing


class ParallelFilms(Films):
    """Films of a parallel environment with the render mode ``rgb_array``.

    Args:
        env: one environment of autoreset mode "disabled"; closed with this.
        own: the user's, which is in it and draws itself.
        check: refuses a policy that does not fit.

    Raises:
        TrainError: it does not draw itself.
    """

    def __init__(
        self, env: ParallelVectorEnv, own: Any, check: Callable[[MultiAgentPolicy, ParallelVectorEnv], None]
    ) -> None:
        self._env, self._own, self._check = env, own, check
        metadata = getattr(own, "metadata", {})
        if getattr(own, "render_mode", None) != "rgb_array":
            modes = ", ".join(metadata.get("render_modes", ())) or "none"
            env.close()
            raise TrainError(
                f"{env.name} has no render mode rgb_array, so there is nothing to film; its modes: {modes}"
            )
        self.fps = float(metadata.get("render_fps") or FPS)

    def play(
        self, state: Mapping[str, Any], episodes: int, seed: int
    ) -> Iterator[tuple[int, Picture, float]]:
        """See `Films.play`; episodes have the seeds from ``seed`` on."""
        policy, env = MultiAgentPolicy.from_state(state["policy"]), self._env
        self._check(policy, env)
        rows, space = env.num_agents, env.single_observation_space
        obs: NDArray[Any] = np.zeros((rows, *(space.shape or ())), space.dtype)
        rewards = np.zeros(rows, np.float32)
        alive, terminations, truncations = (np.zeros(rows, np.bool_) for _ in range(3))
        for number in range(episodes):
            with playing(env.name, seed + number):
                env.reset_into(obs, alive, seed=[seed + number])
                yield number, checked_picture(self._own.render()), 0.0
                while alive.any():
                    env.step_into(policy.act(obs, alive), obs, rewards, terminations, truncations, alive)
                    yield number, checked_picture(self._own.render()), float(rewards.mean())

    def close(self) -> None:
        self._env.close()
