"""PettingZoo's `ParallelEnv` over one world of a compiled simulator of many agents."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.registration import make_multi
from fastrl.envs.viewer import RENDER_MODES, Viewer


class PettingZooEnv(ParallelEnv[str, NDArray[np.float32], Any]):
    """One world as PettingZoo wants it: dicts by the agents' names, "agent_0", "agent_1" and so on.

        env = PettingZooEnv(make_multi("fastrl/coop-highway-v0", 1, autoreset_mode="disabled"))
        obs, infos = env.reset(seed=0)
        while env.agents:
            actions = {agent: env.action_space(agent).sample() for agent in env.agents}
            obs, rewards, terminations, truncations, infos = env.step(actions)

    `possible_agents` are all that an episode can have, `agents` those that act next. The dicts of `step` speak of the
    agents that acted; who has ended is gone from `agents` after it. When the episode ends, the info of each of them
    has `episode`: what `MultiAgentVectorEnv.episodes` says of it. There is no autoreset.

    Args:
        worlds: one world, with autoreset disabled. `set_difficulty` and the state are its own business.
        render_mode: "rgb_array": `render` gives a picture, uint8 [H, W, 3]; "human": a window shows each step.

    Raises:
        TypeError: `worlds` is not a `MultiAgentVectorEnv`.
        ValueError: it has more than one world, or resets itself, or there is no such `render_mode`.
        ImportError: "human" without pygame.
    """

    def __init__(self, worlds: MultiAgentVectorEnv, *, render_mode: str | None = None) -> None:
        if not isinstance(worlds, MultiAgentVectorEnv):
            raise TypeError(
                f"worlds: expected a fastrl.envs.MultiAgentVectorEnv, got {type(worlds).__name__}"
            )
        if worlds.num_envs != 1 or worlds.autoreset_mode is not AutoresetMode.DISABLED:
            raise ValueError(
                f"worlds: expected one world with autoreset_mode='disabled', got {worlds.num_envs} "
                f"with {worlds.autoreset_mode.name.lower()!r}"
            )
        self.worlds = worlds
        self.metadata = {"name": worlds.name, "render_modes": list(RENDER_MODES), "is_parallelizable": True}
        self.render_mode = render_mode
        self._viewer = None
        if render_mode is not None:
            if not worlds.has_scenes:
                raise ValueError(
                    f"render_mode: expected None, {worlds.name} has nothing to show; got {render_mode!r}"
                )
            self._viewer = Viewer(worlds.view, render_mode, fps=worlds.fps)
        self.possible_agents = [f"agent_{i}" for i in range(worlds.num_agents)]
        self.agents: list[str] = []
        self._rows = {agent: row for row, agent in enumerate(self.possible_agents)}
        # One object an agent, the same at each call, so that seeding one means something.
        self.observation_spaces: dict[str, Space[Any]] = {}
        self.action_spaces: dict[str, Space[Any]] = {}
        for agent in self.possible_agents:
            self.observation_spaces[agent] = _copy(worlds.single_observation_space)
            self.action_spaces[agent] = _copy(worlds.single_action_space)

    def observation_space(self, agent: str) -> Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, dict[str, Any]]]:
        """Starts the next episode; without a seed the random stream runs on. `options` are accepted and mean nothing,
        as PettingZoo's own test asks."""
        obs, alive = self.worlds.reset(seed=seed)
        self.agents = self._living(alive[0])
        self._show()
        return {agent: obs[0, self._rows[agent]] for agent in self.agents}, {a: {} for a in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[
        dict[str, NDArray[np.float32]],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Steps the world with one action for each of `agents`.

        Raises:
            gymnasium.error.ResetNeeded: nobody acts: before the first `reset`, or after the end of an episode.
            TypeError: `actions` is no dict, or an action is of another type than the action space has.
            ValueError: an agent is missing, dead or unknown, or an action is out of range or NaN.
                Nothing has changed then.
        """
        rows = self._as_rows(actions)
        obs, rewards, terminations, truncations, alive, info = self.worlds.step(rows[np.newaxis])
        acted = [(agent, self._rows[agent]) for agent in self.agents]
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        if info:
            for agent in infos:
                infos[agent]["episode"] = {key: values[0].item() for key, values in info["episode"].items()}
        self.agents = self._living(alive[0])
        self._show()
        return (
            {agent: obs[0, row] for agent, row in acted},
            {agent: float(rewards[0, row]) for agent, row in acted},
            {agent: bool(terminations[0, row]) for agent, row in acted},
            {agent: bool(truncations[0, row]) for agent, row in acted},
            infos,
        )

    def _as_rows(self, actions: dict[str, Any]) -> NDArray[Any]:
        """The actions as an array [A] or [A, n]; zeros where no agent lives."""
        if not self.agents:
            raise gymnasium.error.ResetNeeded("no agent is there to act: call reset() first")
        if not isinstance(actions, dict):
            raise TypeError(f"actions: expected a dict by agent, got {type(actions).__name__}")
        if actions.keys() != set(self.agents):
            missing = ", ".join(map(str, sorted(set(self.agents) - actions.keys()))) or "none"
            others = ", ".join(map(str, (key for key in actions if key not in self.agents))) or "none"
            raise ValueError(
                f"actions: expected one for each agent in `agents` ({len(self.agents)} now); missing: {missing}; "
                f"dead or unknown: {others}"
            )
        space = self.worlds.single_action_space
        rows = np.zeros((len(self.possible_agents), *(space.shape or ())), space.dtype)
        for agent, action in actions.items():
            array = np.asarray(action)
            if array.dtype.kind not in ("iu" if isinstance(space, Discrete) else "fiu"):
                raise TypeError(f"action of {agent}: expected one of {space}, got {action!r}")
            if array.shape != space.shape:
                raise ValueError(f"action of {agent}: expected one of {space}, got shape {array.shape}")
            if not space.contains(array.astype(space.dtype)):
                raise ValueError(f"action of {agent}: expected one of {space}, got {action!r}")
            rows[self._rows[agent]] = array
        return rows

    def _living(self, alive: NDArray[np.bool_]) -> list[str]:
        return [agent for agent, is_alive in zip(self.possible_agents, alive, strict=True) if is_alive]

    def render(self) -> NDArray[np.uint8] | None:
        """A picture, uint8 [H, W, 3], with `render_mode="rgb_array"`; with "human" it goes into the window."""
        pictures = None if self._viewer is None else self._viewer.render(self.worlds)
        return None if pictures is None else pictures[0]

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()

    def close(self) -> None:
        self.worlds.close()
        if self._viewer is not None:
            self._viewer.close()


def _copy(space: Box | Discrete) -> Box | Discrete:
    """An equal space with a generator of its own."""
    if isinstance(space, Discrete):
        return Discrete(int(space.n))
    return Box(space.low, space.high, dtype=np.float32)


def parallel_env(id: str, *, render_mode: str | None = None, **options: Any) -> PettingZooEnv:  # noqa: A002
    """One world of a simulator by its id, as PettingZoo's games call their constructor; options as for `make_multi`."""
    return PettingZooEnv(make_multi(id, 1, autoreset_mode="disabled", **options), render_mode=render_mode)
