"""PettingZoo's `ParallelEnv` over a compiled environment of several agents."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete, Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.registration import make_multi
from fastrl.envs.viewer import RENDER_MODES, Viewer


class PettingZooEnv(ParallelEnv[str, NDArray[np.float32], Any]):
    """One environment of several agents with PettingZoo's dicts by name: "agent_0", "agent_1" and so on::

        env = PettingZooEnv(make_multi("fastrl/coop-highway-v0", 1, autoreset_mode="disabled"))
        obs, infos = env.reset(seed=0)
        while env.agents:
            actions = {agent: env.action_space(agent).sample() for agent in env.agents}
            obs, rewards, terminations, truncations, infos = env.step(actions)

    `possible_agents` are all that an episode can have, `agents` those that act next. The dicts of `step` have the
    agents that acted; an agent that was terminated or truncated is no longer in `agents`. At the end of an episode the
    info of each agent has `episode`, see `MultiAgentVectorEnv.episodes`; with radio links it has `comms` after each
    step, see `fastrl.envs.traffic.linked.LinkedVectorEnv.comms`. There is no autoreset.

    Args:
        env: one environment, with autoreset disabled. Call its own `set_difficulty` and `save_state` directly.
        render_mode: "rgb_array": `render` gives a picture, uint8 [H, W, 3]; "human": a window shows each step.

    Raises:
        TypeError: `env` is not a `MultiAgentVectorEnv`.
        ValueError: it has more than one environment, or an autoreset mode, or there is no such `render_mode`.
        ImportError: "human" without pygame.
    """

    def __init__(self, env: MultiAgentVectorEnv, *, render_mode: str | None = None) -> None:
        if not isinstance(env, MultiAgentVectorEnv):
            raise TypeError(f"env: expected a fastrl.envs.MultiAgentVectorEnv, got {type(env).__name__}")
        if env.num_envs != 1 or env.autoreset_mode is not AutoresetMode.DISABLED:
            raise ValueError(
                f"env: expected one environment with autoreset_mode='disabled', got {env.num_envs} "
                f"with {env.autoreset_mode.name.lower()!r}"
            )
        self.env = env
        self.metadata = {"name": env.name, "render_modes": list(RENDER_MODES), "is_parallelizable": True}
        self.render_mode = render_mode
        self._viewer = None
        if render_mode is not None:
            if not env.has_scenes:
                raise ValueError(
                    f"render_mode: expected None, {env.name} has no scenes to draw; got {render_mode!r}"
                )
            self._viewer = Viewer(env.view, render_mode, fps=env.fps)
        self.possible_agents = [f"agent_{i}" for i in range(env.num_agents)]
        self.agents: list[str] = []
        self._indices = {agent: i for i, agent in enumerate(self.possible_agents)}
        # One space for each agent, the same at each call, so that seeding it has an effect.
        self.observation_spaces: dict[str, Space[Any]] = {}
        self.action_spaces: dict[str, Space[Any]] = {}
        for agent in self.possible_agents:
            self.observation_spaces[agent] = copy.deepcopy(env.single_observation_space)
            self.action_spaces[agent] = copy.deepcopy(env.single_action_space)

    def observation_space(self, agent: str) -> Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, dict[str, Any]]]:
        """Starts the next episode; without a seed the random stream continues. `options` are accepted and ignored, as
        PettingZoo's own test requires."""
        obs, alive = self.env.reset(seed=seed)
        self.agents = self._alive(alive[0])
        self._show()
        return {agent: obs[0, self._indices[agent]] for agent in self.agents}, {a: {} for a in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[
        dict[str, NDArray[np.float32]],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Steps the environment with one action for each of `agents`.

        Raises:
            gymnasium.error.ResetNeeded: there are no agents: before the first `reset`, or after the end of an episode.
            TypeError: `actions` is no dict, or an action is of another type than the action space has.
            ValueError: an agent is missing, dead or unknown, or an action is out of range or NaN.
                Nothing has changed then.
        """
        batch = self._as_array(actions)[np.newaxis]
        obs, rewards, terminations, truncations, alive, info = self.env.step(batch)
        acted = [(agent, self._indices[agent]) for agent in self.agents]
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        if "comms" in info:
            for agent, i in acted:
                infos[agent]["comms"] = {key: values[0, i].item() for key, values in info["comms"].items()}
        if "episode" in info:
            for agent in infos:
                infos[agent]["episode"] = {key: values[0].item() for key, values in info["episode"].items()}
        self.agents = self._alive(alive[0])
        self._show()
        return (
            {agent: obs[0, i] for agent, i in acted},
            {agent: float(rewards[0, i]) for agent, i in acted},
            {agent: bool(terminations[0, i]) for agent, i in acted},
            {agent: bool(truncations[0, i]) for agent, i in acted},
            infos,
        )

    def _as_array(self, actions: dict[str, Any]) -> NDArray[Any]:
        """The actions as an array [A] or [A, n]; zeros where no agent is alive."""
        if not self.agents:
            raise gymnasium.error.ResetNeeded("there is no agent to act: call reset() first")
        if not isinstance(actions, dict):
            raise TypeError(f"actions: expected a dict by agent, got {type(actions).__name__}")
        if actions.keys() != set(self.agents):
            missing = ", ".join(map(str, sorted(set(self.agents) - actions.keys()))) or "none"
            others = ", ".join(map(str, (key for key in actions if key not in self.agents))) or "none"
            raise ValueError(
                f"actions: expected one for each agent in `agents` ({len(self.agents)} now); missing: {missing}; "
                f"dead or unknown: {others}"
            )
        space = self.env.single_action_space
        batch = np.zeros((len(self.possible_agents), *(space.shape or ())), space.dtype)
        for agent, action in actions.items():
            array = np.asarray(action)
            if array.dtype.kind not in ("iu" if isinstance(space, Discrete) else "fiu"):
                raise TypeError(f"action of {agent}: expected one of {space}, got {action!r}")
            if array.shape != space.shape:
                raise ValueError(f"action of {agent}: expected one of {space}, got shape {array.shape}")
            if not space.contains(array.astype(space.dtype)):
                raise ValueError(f"action of {agent}: expected one of {space}, got {action!r}")
            batch[self._indices[agent]] = array
        return batch

    def _alive(self, alive: NDArray[np.bool_]) -> list[str]:
        return [agent for agent, is_alive in zip(self.possible_agents, alive, strict=True) if is_alive]

    def render(self) -> NDArray[np.uint8] | None:
        """A picture, uint8 [H, W, 3], with `render_mode="rgb_array"`; with "human" it goes into the window."""
        pictures = None if self._viewer is None else self._viewer.render(self.env)
        return None if pictures is None else pictures[0]

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()

    def close(self) -> None:
        self.env.close()
        if self._viewer is not None:
            self._viewer.close()


def parallel_env(id: str, *, render_mode: str | None = None, **options: Any) -> PettingZooEnv:  # noqa: A002
    """Makes one environment by its id, under the name of PettingZoo's constructors; options as for `make_multi`."""
    return PettingZooEnv(make_multi(id, 1, autoreset_mode="disabled", **options), render_mode=render_mode)
