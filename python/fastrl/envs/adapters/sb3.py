"""Stable-Baselines3's `VecEnv` over a Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

Indices = int | Iterable[int] | None


class SB3VecEnv(VecEnv):
    """A Gymnasium vector environment as Stable-Baselines3's `VecEnv`.

        env = SB3VecEnv(Cage2VectorEnv(64, autoreset_mode="same_step"))
        PPO("MlpPolicy", env).learn(100_000)

    `step` gives (obs, rewards float32 [N], dones bool [N], a list of N info dicts). At the end of an episode
    `obs` is the next one's first; the info of the last step has `terminal_observation`, and
    `TimeLimit.truncated` where the episode was truncated and did not terminate, so that SB3 bootstraps there.
    All arrays are the caller's own: SB3's PPO adds to the rewards in place.

    Args:
        env: in SAME_STEP mode; its `get_attr`, `set_attr` and `call` serve SB3's attributes and methods.

    Raises:
        TypeError: `env` is not a Gymnasium vector environment.
        ValueError: `env` is in another autoreset mode.
    """

    def __init__(self, env: VectorEnv) -> None:
        if not isinstance(env, VectorEnv):
            raise TypeError(f"env: expected a gymnasium.vector.VectorEnv, got {type(env).__name__}")
        mode = env.metadata.get("autoreset_mode")
        if mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                f"env: expected the autoreset mode {AutoresetMode.SAME_STEP}, got {mode}; "
                "make it with autoreset_mode='same_step'"
            )
        self.env = env
        self._actions: Any = None
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> NDArray[Any]:
        """Starts new episodes and returns the observations alone; `reset_infos` has the infos.

        Seeds of `seed` and options of `set_options` are used once.
        """
        seeds = None if any(seed is None for seed in self._seeds) else list(self._seeds)
        if any(options != self._options[0] for options in self._options):
            raise ValueError("set_options: expected the same for every environment, got different ones")
        obs, info = self.env.reset(seed=seeds, options=self._options[0] or None)  # type: ignore[arg-type]
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = [env_info(info, i) for i in range(self.num_envs)]
        return obs

    def step_async(self, actions: NDArray[Any]) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        obs, rewards, terminations, truncations, info = self.env.step(self._actions)
        timed_out = truncations & ~terminations
        dones = terminations | truncations
        final = {key: info.pop(key) for key in ("final_obs", "final_info") if key in info}
        for key in final:
            info.pop(f"_{key}")
        infos = [env_info(info, i) for i in range(self.num_envs)] if info else [{} for _ in timed_out]
        for i in np.flatnonzero(dones):
            self.reset_infos[i] = infos[i]
            infos[i] = env_info(final["final_info"], i)
            infos[i]["terminal_observation"] = final["final_obs"][i]
        for own, is_timed_out in zip(infos, timed_out.tolist(), strict=True):
            own["TimeLimit.truncated"] = is_timed_out
        return obs, rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        self.env.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        return self._chosen(self.env.get_attr(attr_name), indices)  # type: ignore[attr-defined]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        if indices is None:
            values = [value] * self.num_envs
        else:
            values = self.get_attr(attr_name)
            for i in self._get_indices(indices):
                values[i] = value
        self.env.set_attr(attr_name, values)  # type: ignore[attr-defined]

    def env_method(self, method_name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        """Calls the method once, for all environments, and returns the results of the chosen ones."""
        return self._chosen(self.env.call(method_name, *args, **kwargs), indices)  # type: ignore[attr-defined]

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        """False for each: a compiled vector environment has no single environments to wrap."""
        return self._chosen([False] * self.num_envs, indices)

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """None for each: these environments render as text."""
        return [None] * self.num_envs

    def _chosen(self, values: Sequence[Any], indices: Indices) -> list[Any]:
        return [values[i] for i in self._get_indices(indices)]


def env_info(info: dict[str, Any], i: int | np.integer[Any]) -> dict[str, Any]:
    """The info of environment i from a vector environment's info, without the masks."""
    own = {}
    for key, value in info.items():
        if key.startswith("_") or not info[f"_{key}"][i]:
            continue
        own[key] = env_info(value, i) if isinstance(value, dict) else value[i]
    return own
