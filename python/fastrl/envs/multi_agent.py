"""Many agents in many worlds, as rows.

K worlds with at most A agents each are K*A rows, row = world * A + agent, with a flag each that says whether an agent
lives there. One compiled call steps them all. Dict-shaped faces are made at the edge: `fastrl.envs.adapters`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import ArrayLike, NDArray

from fastrl._native._rust import TrafficScene
from fastrl.envs.traffic.episode_log import EpisodeLog
from fastrl.envs.vector import SEED_LIMIT, as_autoreset_mode, as_seed
from fastrl.envs.viewer import View


class NativeMultiVec(Protocol):
    """What the compiled class of a simulator offers; `_rust.pyi` says what each method takes.

    It may also have `set_difficulty(num_agents, density)`, which takes int64 [K] and float64 [K] or None,
    `episodes()`, which gives what `MultiAgentVectorEnv.episodes` says, and `scene(world)`, what a world shows.
    """

    @property
    def num_envs(self) -> int: ...
    @property
    def num_agents(self) -> int: ...
    @property
    def obs_dim(self) -> int: ...
    def reset(
        self,
        obs: NDArray[np.float32],
        seeds: NDArray[np.uint64] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
        alive: NDArray[np.bool_] | None = None,
    ) -> None: ...
    def observe(self, obs: NDArray[np.float32], alive: NDArray[np.bool_] | None = None) -> None: ...
    def step(
        self,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[np.float32] | None = None,
        alive: NDArray[np.bool_] | None = None,
    ) -> None: ...
    def save_state(self) -> bytes: ...
    def load_state(self, state: bytes) -> None: ...
    def close(self) -> None: ...


class MultiAgentVectorEnv:
    """K worlds of at most A agents of a compiled simulator.

    Arrays are rows: observations float32 [K*A, D], rewards float32 (or float64) [K*A], terminations, truncations and
    alive bool [K*A]. `alive` says of each row whether its agent acts next. A row that was not alive before a step has
    its action ignored and gets an observation of zeros, reward 0 and no flags. An agent whose part ends (terminated)
    gets its true last observation with that step and is not alive after it. A world's episode ends when nobody lives
    on or its time is up, and then those who lived until then are truncated.

    What follows an end is the autoreset mode, a world at a time: "same_step" resets within the step (`obs` and `alive`
    are the next episode's, `final_obs` has the last observations), "next_step" with the step after it (nobody is
    alive in between; that step ignores the actions and gives rewards 0 and no flags), "disabled" leaves it to
    `reset_mask`.

    Each world draws from its own stream: seed s gives world i the seed s + i, a list of K is taken as it is, None
    lets the streams run on. Results do not depend on the number of threads.

    Args:
        native: builds the compiled object for the autoreset mode that it is given ("next_step", "same_step",
            "disabled").
        observation_space: of one agent, a `Box` float32 [D].
        action_space: of one agent, `Discrete` or a `Box` float32 [n].
        autoreset_mode: Gymnasium's enum or the name of one.
        name: the environment's id, for messages.
        view: how pictures are made; None: the usual way. It may be changed.
        fps: steps in a second of the simulation.
    """

    def __init__(
        self,
        native: Callable[[str], NativeMultiVec],
        observation_space: Box,
        action_space: Discrete | Box,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        name: str = "this environment",
        view: View | None = None,
        fps: float = 1.0,
    ) -> None:
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        self.name = name
        self.view = view or View()
        self.fps = fps
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self._native: Any = native(self.autoreset_mode.name.lower())
        self.num_envs: int = self._native.num_envs
        self.num_agents: int = self._native.num_agents
        self._rows = self.num_envs * self.num_agents
        self._obs_shape = (self._rows, self._native.obs_dim)
        if observation_space.shape != self._obs_shape[1:]:
            raise ValueError(
                f"observation_space: expected shape {self._obs_shape[1:]}, got {observation_space.shape}"
            )
        keeps_account = hasattr(self._native, "episodes")
        self._log = None if keeps_account else EpisodeLog(self.num_envs, self.num_agents)
        self._was_reset = False

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Starts new episodes in the worlds that `reset_mask` [K] selects (all without it); returns observations
        [K, A, D] and alive [K, A] of all worlds: the others go on, and their rows show where they stand."""
        obs = np.empty(self._obs_shape, np.float32)
        alive = np.empty(self._rows, np.bool_)
        if reset_mask is not None:
            self._native.observe(obs, alive)
        self.reset_into(obs, alive, seed=seed, reset_mask=reset_mask)
        return self._shaped(obs), self._shaped(alive)

    def reset_into(
        self,
        obs: NDArray[np.float32],
        alive: NDArray[np.bool_],
        *,
        seed: int | Sequence[int] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """As `reset`, into `obs` float32 [K*A, D] and `alive` bool [K*A]: writes the rows of the worlds that it resets
        and leaves the others."""
        self._native.reset(obs, self._seeds(seed), reset_mask, alive)
        if self._log is not None:
            self._log.begin(alive, reset_mask)
        self._was_reset = True

    def _seeds(self, seed: int | Sequence[int] | None) -> NDArray[np.uint64] | None:
        if seed is None:
            if self._was_reset:
                return None
            return np.random.default_rng().integers(SEED_LIMIT, size=self.num_envs, dtype=np.uint64)
        if isinstance(seed, list | tuple | np.ndarray):
            if len(seed) != self.num_envs:
                raise ValueError(f"seed: expected {self.num_envs} seeds, got {len(seed)}")
            return np.array([as_seed(s) for s in seed], np.uint64)
        first = as_seed(seed)
        as_seed(first + self.num_envs - 1)
        return np.arange(self.num_envs, dtype=np.uint64) + np.uint64(first)

    def step(
        self, actions: ArrayLike
    ) -> tuple[
        NDArray[np.float32],
        NDArray[np.float32],
        NDArray[np.bool_],
        NDArray[np.bool_],
        NDArray[np.bool_],
        dict[str, Any],
    ]:
        """Steps every world. `actions` are [K, A] integers or [K, A, n] numbers.

        Returns observations [K, A, D], rewards, terminations, truncations and alive, each [K, A], and an info. When
        episodes end, it has `episode` (as `episodes()`) and, with autoreset "same_step", `final_obs` [K, A, D]; the
        masks `_episode` and `_final_obs`, bool [K], say for which worlds.
        """
        obs = np.empty(self._obs_shape, np.float32)
        rewards = np.empty(self._rows, np.float32)
        terminations, truncations, alive = (np.empty(self._rows, np.bool_) for _ in range(3))
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        final_obs = np.zeros(self._obs_shape, np.float32) if same_step else None
        before = self.episodes()["finished"]
        self.step_into(self._as_actions(actions), obs, rewards, terminations, truncations, alive, final_obs)
        episodes = self.episodes()
        ended = episodes["finished"] != before
        info: dict[str, Any] = {}
        if ended.any():
            info = {"episode": episodes, "_episode": ended}
            if final_obs is not None:
                info |= {"final_obs": self._shaped(final_obs), "_final_obs": ended.copy()}
        shaped = (self._shaped(array) for array in (terminations, truncations, alive))
        return self._shaped(obs), self._shaped(rewards), *shaped, info  # type: ignore[return-value]

    def step_into(
        self,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        alive: NDArray[np.bool_],
        final_obs: NDArray[np.float32] | None = None,
    ) -> None:
        """As `step`, into the caller's arrays; nothing is allocated.

        All are C-contiguous and share no memory: actions int64 [K*A] or float32 [K*A, n], obs float32 [K*A, D], rewards
        float32 or float64 [K*A], terminations, truncations and alive bool [K*A]. `final_obs` float32 [K*A, D] belongs
        to "same_step": rows of worlds whose episode ended get their last observations, the others are left as they
        are. The GIL is released meanwhile, so no other thread may touch the arrays. Raises TypeError (dtype),
        ValueError (shape, strides, read-only, an action out of range or NaN) or `gymnasium.error.ResetNeeded`, and
        then nothing has changed.
        """
        self._native.step(actions, obs, rewards, terminations, truncations, final_obs, alive)
        if self._log is not None:
            self._log.step(rewards, terminations, truncations, alive)

    def _as_actions(self, actions: ArrayLike) -> NDArray[Any]:
        """Checks shape and kind; the compiled side checks the values."""
        array = np.asarray(actions)
        discrete = isinstance(self.single_action_space, Discrete)
        shape = (self.num_envs, self.num_agents, *(self.single_action_space.shape or ()))
        kinds, what = ("iu", "integers") if discrete else ("fiu", "numbers")
        if array.dtype.kind not in kinds:
            raise TypeError(f"actions: expected {what} of shape {shape}, got dtype {array.dtype}")
        if array.shape != shape:
            raise ValueError(f"actions: expected {what} of shape {shape}, got shape {array.shape}")
        if discrete and array.dtype == np.uint64 and array.max() >= SEED_LIMIT // 2:
            raise ValueError(f"actions: expected numbers below 2**63, got {array.max()}")
        flat = array.reshape(self._rows, *shape[2:])
        return np.ascontiguousarray(flat, np.int64 if discrete else np.float32)

    def _shaped(self, rows: NDArray[Any]) -> NDArray[Any]:
        return rows.reshape(self.num_envs, self.num_agents, *rows.shape[1:])

    def set_difficulty(
        self,
        *,
        num_agents: int | NDArray[np.integer] | None = None,
        density: float | NDArray[np.floating] | None = None,
    ) -> None:
        """Sets the number of agents and the density of the traffic, one for all worlds or [K]; None leaves it. It
        counts from each world's next reset on, autoresets included.

        Raises:
            ValueError: a value that the simulator cannot have; nothing has changed then.
            TypeError: not a number.
            NotImplementedError: this simulator's difficulty is fixed.
        """
        if not hasattr(self._native, "set_difficulty"):
            raise NotImplementedError(f"{self.name} has a fixed number of agents and a fixed density")
        self._native.set_difficulty(
            self._each_world("num_agents", num_agents, "iu", np.int64),
            self._each_world("density", density, "fiu", np.float64),
        )

    def _each_world(self, name: str, value: object, kinds: str, dtype: type) -> NDArray[Any] | None:
        if value is None:
            return None
        array = np.asarray(value)
        if array.dtype.kind not in kinds:
            what = "an integer or integers" if kinds == "iu" else "a number or numbers"
            raise TypeError(f"{name}: expected {what} of shape ({self.num_envs},), got {value!r}")
        if array.shape not in ((), (self.num_envs,)):
            raise ValueError(f"{name}: expected one, or shape ({self.num_envs},), got shape {array.shape}")
        return np.array(np.broadcast_to(array, (self.num_envs,)), dtype)

    def episodes(self) -> dict[str, NDArray[Any]]:
        """What became of the episode that each world finished last, [K] each.

        `finished` int64: how many so far; the others are float64, NaN before the first: `length` in steps,
        `return_mean` (mean over the agents of their sums of rewards), `num_agents`, `collision_rate` (share of the
        agents that crashed), `mean_speed` m/s, `throughput` vehicles/h, `min_ttc` s (the shortest time to a collision
        that an agent came to), `success` (share of the agents that ended well). What a simulator does not know is NaN.
        """
        if self._log is not None:
            return self._log.episodes()
        account: dict[str, NDArray[Any]] = self._native.episodes()
        return account

    @property
    def has_scenes(self) -> bool:
        """Whether it can be looked at."""
        return hasattr(self._native, "scene")

    def scene(self, world: int = 0) -> TrafficScene:
        """What a world shows now. Raises NotImplementedError if this simulator has nothing to show."""
        if not self.has_scenes:
            raise NotImplementedError(f"{self.name} has nothing to show")
        scene: TrafficScene = self._native.scene(world)
        return scene

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """A picture of each world, uint8 [H, W, 3], as `view` says."""
        return tuple(self.view.draw(self.scene(world)) for world in range(self.num_envs))

    def save_state(self) -> bytes:
        """Everything that the future depends on, generators included; for `load_state` of an equal environment."""
        native: bytes = self._native.save_state()
        return native if self._log is None else native + self._log.save_state()

    def load_state(self, state: bytes) -> None:
        """Restores what `save_state` gave. Raises ValueError if it is damaged or of other options, and then nothing
        has changed."""
        if self._log is None:
            self._native.load_state(state)
        else:
            split = max(len(state) - self._log.state_size, 0)
            self._log.check_state(state[split:])
            self._native.load_state(state[:split])
            self._log.load_state(state[split:])
        self._was_reset = True

    def close(self) -> None:
        """Ends it. May be called again."""
        self._native.close()


MULTI_IDS: dict[str, str] = {
    "fastrl/coop-highway-v0": "fastrl.envs.traffic.coop:coop_highway",
    "fastrl/coop-merge-v0": "fastrl.envs.traffic.coop:coop_merge",
    "fastrl/highway-v0": "fastrl.envs.traffic.highway_multi:HighwayWorlds",
    "fastrl/highway-fast-v0": "fastrl.envs.traffic.highway_multi:highway_fast",
    "fastrl/ring-v0": "fastrl.envs.traffic.ring:RingWorlds",
}
"""Simulators of many agents by their ids, and what makes them: called with `num_envs` and its options."""


def make_multi(id: str, num_envs: int, **options: Any) -> MultiAgentVectorEnv:  # noqa: A002 (Gymnasium's name)
    """Makes `num_envs` worlds of a simulator by its id.

    >>> worlds = make_multi("fastrl/coop-highway-v0", 8, num_agents=6)
    >>> obs, alive = worlds.reset(seed=0)

    Args:
        id: one of `MULTI_IDS`.
        num_envs: worlds, K.
        options: the simulator's own (see `fastrl.envs.traffic.coop`), and `autoreset_mode` ("same_step", the default,
            "next_step" or "disabled"). One that it does not have is a TypeError that names it.

    Raises:
        ValueError: an unknown id, or an option out of range.
    """
    if id not in MULTI_IDS:
        raise ValueError(f"id: expected one of {', '.join(map(repr, MULTI_IDS))}, got {id!r}")
    module, _, name = MULTI_IDS[id].partition(":")
    maker: Callable[..., MultiAgentVectorEnv] = getattr(import_module(module), name)
    return maker(num_envs, **options)
