"""PettingZoo's `ParallelEnv` over a compiled environment of several agents."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete, Space
from gymnasium.vector import AutoresetMode
from numpy.typing import ArrayLike, NDArray
from pettingzoo import ParallelEnv

from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.registration import make_multi
from fastrl.envs.viewer import Viewer


class PettingZooEnv(ParallelEnv[str, NDArray[Any], Any]):
    """One environment of several agents with PettingZoo's dicts by name: its own names, or "agent_0", "agent_1", ...::

        env = PettingZooEnv(make_multi("fastrl/coop-highway-v0", 1, autoreset_mode="disabled"))
        obs, infos = env.reset(seed=0)
        while env.agents:
            actions = {agent: env.action_space(agent).sample() for agent in env.agents}
            obs, rewards, terminations, truncations, infos = env.step(actions)

    `possible_agents` are all that an episode can have, `agents` those that act next. The dicts of `step` have the
    agents that acted; an agent that was terminated or truncated is no longer in `agents`. There is no autoreset.

    The info of an agent has, where the environment has them: `action_mask`, int8 [n], 0 for actions that it should not
    choose; `comms`, see `fastrl.envs.traffic.linked.LinkedVectorEnv.comms`; `state`, the true state with
    `info_state=True`; and at the end of an episode `episode`, see `MultiAgentVectorEnv.episodes`.

    Args:
        env: one environment, with autoreset disabled. Call its own `set_difficulty` and `save_state` directly.
        render_mode: one of the environment's: "rgb_array": `render` gives a picture, uint8 [H, W, 3]; "human": a window
            shows each step; "ansi": a text.
        pad_spaces: where agents differ in their spaces, all have the longest: zeros follow an observation, and masked
            actions without effect follow the others.

    Raises:
        TypeError: `env` is not a `MultiAgentVectorEnv`.
        ValueError: it has more than one environment, or an autoreset mode, or there is no such `render_mode`.
        ImportError: "human" without pygame.
    """

    def __init__(
        self, env: MultiAgentVectorEnv, *, render_mode: str | None = None, pad_spaces: bool = False
    ) -> None:
        if not isinstance(env, MultiAgentVectorEnv):
            raise TypeError(f"env: expected a fastrl.envs.MultiAgentVectorEnv, got {type(env).__name__}")
        if env.num_envs != 1 or env.autoreset_mode is not AutoresetMode.DISABLED:
            raise ValueError(
                f"env: expected one environment with autoreset_mode='disabled', got {env.num_envs} "
                f"with {env.autoreset_mode.name.lower()!r}"
            )
        if render_mode is not None and render_mode not in env.render_modes:
            names = ", ".join(["None", *map(repr, env.render_modes)])
            reason = "" if env.render_modes else f", {env.name} has nothing to draw"
            raise ValueError(f"render_mode: expected {names}{reason}; got {render_mode!r}")
        self.env = env
        self.metadata = {
            "name": env.name,
            "render_modes": list(env.render_modes),
            "render_fps": env.fps,
            "is_parallelizable": True,
        }
        self.render_mode = render_mode
        self._viewer: Viewer | None = None
        if render_mode is not None and env.has_scenes:
            self._viewer = Viewer(env.view, render_mode, fps=env.fps)
        self.possible_agents = [
            each if isinstance(each, str) else f"agent_{i}" for i, each in enumerate(env.agents)
        ]
        self.agents: list[str] = []
        self._indices = {agent: i for i, agent in enumerate(self.possible_agents)}
        # One space for each agent, the same at each call, so that seeding it has an effect.
        observations, actions = zip(*env.agent_spaces(padded=pad_spaces), strict=True)
        self.observation_spaces = {
            agent: copy.deepcopy(observations[i]) for agent, i in self._indices.items()
        }
        self.action_spaces = {agent: copy.deepcopy(actions[i]) for agent, i in self._indices.items()}
        space = env.single_action_space
        self._has_masks = isinstance(space, Discrete) and env.num_masked == space.n

    def observation_space(self, agent: str) -> Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, dict[str, Any]]]:
        """Starts the next episode; without a seed the random stream continues. `options` are accepted and ignored, as
        PettingZoo's own test requires."""
        obs, alive = self.env.reset(seed=seed)
        self.agents = self._alive(alive[0])
        self._show()
        return self._observations(obs[0], self.agents), self._infos(self.env.info())

    def step(
        self, actions: dict[str, Any], messages: Mapping[str, ArrayLike] | None = None
    ) -> tuple[
        dict[str, NDArray[Any]],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Steps the environment with one action for each of `agents`.

        Args:
            messages: by agent the bits, 0 or 1 [`message_bits`], that it sends with its action; zeros of agents that
                are not named. Only where the environment has messages.

        Raises:
            gymnasium.error.ResetNeeded: there are no agents: before the first `reset`, or after the end of an episode.
            TypeError: `actions` or `messages` is no dict, or an action is of another type than the action space has.
            ValueError: an agent is missing, dead or unknown, an action is out of range or NaN, or a message is not of
                bits. Nothing has changed then.
        """
        batch = self._as_array(actions)[np.newaxis]
        if messages is not None:
            self.env.send(self._packed(messages)[np.newaxis])
        obs, rewards, terminations, truncations, alive, info = self.env.step(batch)
        acted, infos = [(agent, self._indices[agent]) for agent in self.agents], self._infos(info)
        observations = self._observations(obs[0], self.agents)
        self.agents = self._alive(alive[0])
        self._show()
        return (
            observations,
            {agent: float(rewards[0, i]) for agent, i in acted},
            {agent: bool(terminations[0, i]) for agent, i in acted},
            {agent: bool(truncations[0, i]) for agent, i in acted},
            infos,
        )

    def _observations(self, rows: NDArray[Any], agents: list[str]) -> dict[str, NDArray[Any]]:
        """Observations of agents from all rows [A, D]."""
        observations = {}
        for agent in agents:
            space: Any = self.observation_spaces[agent]
            row = rows[self._indices[agent], : space.shape[0]]
            observations[agent] = row.astype(space.dtype, copy=False)
        return observations

    def _infos(self, info: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Infos of the agents that acted, from the environment's."""
        shared: dict[str, Any] = {}
        if "episode" in info:
            shared["episode"] = {key: values[0].item() for key, values in info["episode"].items()}
        if "state" in info:
            shared["state"] = {key: values[0] for key, values in info["state"].items()}
        masks = self.env.action_masks().view(np.int8) if self._has_masks else None
        infos = {agent: dict(shared) for agent in self.agents}
        for agent, own in infos.items():
            i = self._indices[agent]
            if "comms" in info:
                own["comms"] = {key: values[0, i].item() for key, values in info["comms"].items()}
            if masks is not None:
                space: Any = self.action_spaces[agent]
                own["action_mask"] = masks[i, : space.n]
        return infos

    def _packed(self, messages: Mapping[str, ArrayLike]) -> NDArray[np.uint8]:
        """Messages as an array [A], the first bit highest; zeros where an agent sends none."""
        bits = self.env.message_bits
        if not bits:
            raise ValueError(f"messages: expected None, the agents of {self.env.name} send none")
        if not isinstance(messages, Mapping):
            raise TypeError(f"messages: expected a dict by agent, got {type(messages).__name__}")
        table = np.zeros((len(self.possible_agents), bits), np.bool_)
        for agent, message in messages.items():
            if agent not in self._indices:
                raise ValueError(f"messages: unknown agent {agent!r}, expected one of {self.possible_agents}")
            array = np.asarray(message)
            if array.shape != (bits,) or not np.isin(array, (0, 1)).all():
                raise ValueError(f"message of {agent}: expected {bits} numbers 0 or 1, got {message!r}")
            table[self._indices[agent]] = array
        return np.packbits(table, axis=1)[:, 0]

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
        batched = self.env.single_action_space
        batch = np.zeros((len(self.possible_agents), *(batched.shape or ())), batched.dtype)
        for agent, action in actions.items():
            space, array = self.action_spaces[agent], np.asarray(action)
            if array.dtype.kind not in ("iu" if isinstance(space, Discrete) else "fiu"):
                raise TypeError(f"action of {agent}: expected one of {space}, got {action!r}")
            if array.shape != space.shape:
                raise ValueError(f"action of {agent}: expected one of {space}, got shape {array.shape}")
            if isinstance(space, Discrete):
                # The same as `contains`, which takes longer than the step of a small environment.
                fits = space.start <= array < space.start + space.n
            else:
                fits = space.contains(array.astype(space.dtype))
            if not fits:
                raise ValueError(f"action of {agent}: expected one of {space}, got {action!r}")
            batch[self._indices[agent]] = array
        return batch

    def _alive(self, alive: NDArray[np.bool_]) -> list[str]:
        return [agent for agent, is_alive in zip(self.possible_agents, alive, strict=True) if is_alive]

    def render(self) -> Any:
        """A picture, uint8 [H, W, 3], or a text, see `render_mode`; None with "human" and without a mode."""
        if self._viewer is not None:
            pictures = self._viewer.render(self.env)
            return None if pictures is None else pictures[0]
        return None if self.render_mode is None else self.env.render(self.render_mode)[0]

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()

    def close(self) -> None:
        self.env.close()
        if self._viewer is not None:
            self._viewer.close()


def parallel_env(
    id: str,  # noqa: A002
    *,
    render_mode: str | None = None,
    pad_spaces: bool = False,
    **options: Any,
) -> PettingZooEnv:
    """Makes one environment by its id, under the name of PettingZoo's constructors; options as for `make_multi` and
    `PettingZooEnv`."""
    env = make_multi(id, 1, autoreset_mode="disabled", **options)
    return PettingZooEnv(env, render_mode=render_mode, pad_spaces=pad_spaces)
