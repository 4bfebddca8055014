"""Vector environments of several agents each: K environments with at most A agents.

Arrays are flat over environments and agents: agent a of environment k has index k * A + a, and a flag says whether it
is alive. One compiled call steps all of them. `fastrl.envs.adapters` turns the arrays into PettingZoo's dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from gymnasium.vector import AutoresetMode
from numpy.typing import ArrayLike, NDArray

from fastrl._native._rust import TrafficScene
from fastrl.envs.contract import ContractError
from fastrl.envs.episode_log import EPISODE_FIELDS, EpisodeLog
from fastrl.envs.vector import (
    SEED_LIMIT,
    CompiledRollout,
    Rebuilt,
    as_actions,
    as_autoreset_mode,
    as_seeds,
)
from fastrl.envs.viewer import RENDER_MODES, View

if TYPE_CHECKING:
    from fastrl._native._rust import NativeVec

# Gives the rewards [K*A] of a step from the simulator's rewards [K*A], the actions, the observations float32 [K*A, D]
# that the step led to, terminations and truncations bool [K*A]. What agents get that did not act has no effect.
Reward = Callable[..., NDArray[np.floating]]


class MultiAgentVectorEnv(Rebuilt):
    """K environments with at most A agents each, of a compiled simulator or of `fastrl.envs.adapters.parallel`.

    Arrays are flat: observations float32 (with images uint8) [K*A, D], rewards float32 (or float64) [K*A],
    terminations, truncations and alive bool [K*A]. `alive` marks the agents that act next. Where an agent was not alive
    before a step, its action is ignored and it gets an observation of zeros, reward 0 and no flags. A terminated agent
    gets its true last observation with that step and is not alive after it. The episode of an environment ends when no
    agent is alive or its time is up; then the agents that were alive until then are truncated.

    The autoreset mode says what follows the end of an environment's episode: "same_step" resets within the step (`obs`
    and `alive` are the next episode's, `final_obs` has the last observations), "next_step" with the next step (between
    the two no agent is alive; that step ignores the actions and gives rewards 0 and no flags), "disabled" waits for
    `reset_mask`.

    Each environment has its own random stream: seed s gives environment i the seed s + i, a list of K gives each its
    own, and None continues the streams. Results do not depend on the number of threads.

    Args:
        native: builds the compiled object for the autoreset mode that it is given ("next_step", "same_step",
            "disabled").
        observation_space: of one agent, a `Box` float32 or uint8 [D].
        action_space: of one agent, `Discrete`, `MultiDiscrete` or a `Box` float32 [n].
        autoreset_mode: Gymnasium's enum or the name of a mode.
        name: the environment's id, for messages.
        view: how pictures are drawn; None: the default view. It may be changed.
        fps: steps in a second of the simulation.

    Attributes:
        reward: changes what agents get, see `Reward`; None: the simulator's rewards. Set it before the first reset.
        num_masked: width of an action mask; 0: there are none.
        obs_space: of an agent's observation; the arrays hold each as a row.
        agents: names of the agents; here their numbers.
        groups: a name for each agent, the same for agents of equal spaces.
        obs_shapes: of each agent's observation as its row holds it: the shape of a Box, else the length of the row.
        message_bits: length of a message that an agent can send beside an action; 0: there are none.
        render_modes: of `render`.
    """

    message_bits = 0

    def __init__(
        self,
        native: Callable[[str], NativeVec],
        observation_space: Box,
        action_space: Discrete | MultiDiscrete | Box,
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
        self.num_masked: int = getattr(self._native, "num_masked", 0)
        self.obs_space: Space[Any] = observation_space
        self.agents: Sequence[Any] = range(self.num_agents)
        self.groups = ("group0",) * self.num_agents
        self.obs_shapes = (observation_space.shape,) * self.num_agents
        # Length of the flat arrays.
        self._size = self.num_envs * self.num_agents
        self._obs_shape = (self._size, self._native.obs_dim)
        self._obs_dtype: np.dtype[Any] = np.dtype(observation_space.dtype)
        if observation_space.shape != self._obs_shape[1:]:
            raise ValueError(
                f"observation_space: expected shape {self._obs_shape[1:]}, got {observation_space.shape}"
            )
        # Only where the simulator does not count the returns of episodes itself, or not those of a user's task.
        counts = hasattr(self._native, "episodes") and not hasattr(self._native, "task")
        self._log = None if counts else EpisodeLog(self.num_envs, self.num_agents)
        self._reward: Reward | None = None
        self._was_reset = False

    @property
    def reward(self) -> Reward | None:
        return self._reward

    @reward.setter
    def reward(self, reward: Reward | None) -> None:
        if reward is not None and not callable(reward):
            raise TypeError(f"reward: expected a function of {self.name}'s arrays, got {reward!r}")
        self._reward = reward
        if reward is not None and self._log is None:
            self._log = EpisodeLog(self.num_envs, self.num_agents)

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Starts new episodes in the environments of `reset_mask` [K], in all without it. Returns observations
        [K, A, D] and alive [K, A] of all environments; those that are not reset keep their episodes."""
        if reset_mask is None:
            obs, alive = np.empty(self._obs_shape, self._obs_dtype), np.empty(self._size, np.bool_)
        else:
            obs, alive = self.observe()
        self.reset_into(obs, alive, seed=seed, reset_mask=reset_mask)
        return self._per_agent(obs), self._per_agent(alive)

    def observe(self) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The present observations float32 [K*A, D] and alive bool [K*A]; changes nothing."""
        obs, alive = np.empty(self._obs_shape, self._obs_dtype), np.empty(self._size, np.bool_)
        self._native.observe(obs, alive)
        return obs, alive

    def action_masks(self, out: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
        """The actions that agents may choose now, bool [K*A, num_masked], written to `out` if it is given; those of
        agents that are not alive have no meaning. Raises ValueError if there are no masks."""
        if out is None:
            out = np.empty((self._size, self.num_masked), np.bool_)
        self._native.action_masks(out)
        return out

    def reset_into(
        self,
        obs: NDArray[Any],
        alive: NDArray[np.bool_],
        *,
        seed: int | Sequence[int] | NDArray[np.uint64] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Does as `reset`, into `obs` float32 [K*A, D] and `alive` bool [K*A]: writes the entries of the environments
        that it resets and leaves the others as they are."""
        self._native.reset(obs, self._seeds(seed), reset_mask, alive)
        if self._log is not None:
            self._log.reset(alive, reset_mask)
        self._was_reset = True

    def _seeds(self, seed: int | Sequence[int] | NDArray[np.uint64] | None) -> NDArray[np.uint64] | None:
        if seed is not None:
            return as_seeds(seed, self.num_envs)
        if self._was_reset:
            return None
        return np.random.default_rng().integers(SEED_LIMIT, size=self.num_envs, dtype=np.uint64)

    def step(
        self, actions: ArrayLike
    ) -> tuple[
        NDArray[Any],
        NDArray[np.float32],
        NDArray[np.bool_],
        NDArray[np.bool_],
        NDArray[np.bool_],
        dict[str, Any],
    ]:
        """Steps every environment. `actions` are [K, A] integers or [K, A, n] numbers.

        Returns observations [K, A, D], rewards, terminations, truncations and alive, each [K, A], and an info. When
        episodes end, the info has `episode` (as `episodes()`) and, in mode "same_step", `final_obs` [K, A, D]; the
        masks `_episode` and `_final_obs`, bool [K], mark their environments.
        """
        obs = np.empty(self._obs_shape, self._obs_dtype)
        rewards = np.empty(self._size, np.float32)
        terminations, truncations, alive = (np.empty(self._size, np.bool_) for _ in range(3))
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        final_obs = np.zeros(self._obs_shape, self._obs_dtype) if same_step else None
        before = self._finished()
        batch = as_actions(actions, self.single_action_space, (self.num_envs, self.num_agents))
        flat = batch.reshape(self._size, *batch.shape[2:])
        self.step_into(flat, obs, rewards, terminations, truncations, alive, final_obs)
        ended = self._finished() != before
        info: dict[str, Any] = {}
        if ended.any():
            info = {"episode": self.episodes(), "_episode": ended}
            if final_obs is not None:
                info |= {"final_obs": self._per_agent(final_obs), "_final_obs": ended.copy()}
        info |= self.info()
        return (
            self._per_agent(obs),
            self._per_agent(rewards),
            self._per_agent(terminations),
            self._per_agent(truncations),
            self._per_agent(alive),
            info,
        )

    def _finished(self) -> NDArray[np.int64]:
        """Episodes of each environment that have ended, [K]; `episodes` without what takes longer."""
        if self._log is None or hasattr(self._native, "episodes"):
            return self._native.episodes()["finished"]
        return self._log.finished.copy()

    def info(self) -> dict[str, Any]:
        """Entries, arrays [K, ...], that a simulator adds to the info of every step."""
        return {}

    def agent_spaces(self, *, padded: bool) -> list[tuple[Space[Any], Space[Any]]]:
        """Spaces of each agent's observation and action.

        Args:
            padded: all are as long as the longest; else an agent has the first values of its row and the first actions.
        """
        return [(self.single_observation_space, self.single_action_space)] * self.num_agents

    def send(self, messages: NDArray[np.uint8]) -> None:
        """Sets the messages that the agents send with the next step, uint8 [K, A]. Raises NotImplementedError if they
        have none, see `message_bits`."""
        raise NotImplementedError(f"the agents of {self.name} send no messages")

    def step_into(
        self,
        actions: NDArray[Any],
        obs: NDArray[Any],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        alive: NDArray[np.bool_],
        final_obs: NDArray[Any] | None = None,
    ) -> None:
        """Does as `step`, into the caller's arrays, and allocates nothing.

        The arrays are C-contiguous and share no memory: actions int64 [K*A] or float32 [K*A, n], obs float32 [K*A, D],
        rewards float32 or float64 [K*A], terminations, truncations and alive bool [K*A]. `final_obs`, float32
        [K*A, D], belongs to mode "same_step": where an episode ended it gets the last observations, elsewhere it is
        left as it is. The GIL is released during the call, so no other thread may touch the arrays.

        Raises:
            TypeError: a wrong dtype.
            ValueError: a wrong shape, strides, a read-only array, or an action out of range or NaN.
            gymnasium.error.ResetNeeded: an environment has to be reset first.
            Nothing has changed then.
        """
        last = final_obs
        if self._reward is not None and self.autoreset_mode is AutoresetMode.SAME_STEP:
            last = np.full(self._obs_shape, np.nan, self._obs_dtype)
        self._native.step(actions, obs, rewards, terminations, truncations, last, alive)
        if self._reward is not None:
            reached = obs
            if last is not None and last is not final_obs:
                # A reward is for what the step led to, not for the first observation of the next episode.
                ended = ~np.isnan(last[:, 0])
                reached = np.where(ended[:, None], last, obs)
                if final_obs is not None:
                    final_obs[ended] = last[ended]
            given = np.asarray(self._reward(rewards, actions, reached, terminations, truncations))
            if given.shape != rewards.shape:
                raise ContractError(
                    f"{self.name}: reward should give numbers of shape {rewards.shape}, got {given.shape}"
                )
            assert self._log is not None, "returns are counted here"
            rewards[:] = np.where(self._log.alive.ravel(), given, 0.0)
        if self._log is not None:
            self._log.step(rewards, terminations, truncations, alive)

    @property
    def compiled_rollout(self) -> CompiledRollout | None:
        """See `fastrl.envs.vector.NativeVectorEnv`; None where a function changes the rewards of each step, or masks
        are of a part of the actions, as beside choices of radio resources."""
        space = self.single_action_space
        has_part = isinstance(space, Discrete) and getattr(self._native, "num_masked", 0) not in (0, space.n)
        return None if self._reward is not None or has_part else getattr(self._native, "rollout", None)

    def _per_agent(self, flat: NDArray[Any]) -> NDArray[Any]:
        return flat.reshape(self.num_envs, self.num_agents, *flat.shape[1:])

    def set_difficulty(
        self,
        *,
        num_agents: int | NDArray[np.integer] | None = None,
        density: float | NDArray[np.floating] | None = None,
    ) -> None:
        """Sets the number of agents and the density of the traffic, one value for all environments or [K]; None keeps
        the present value. It takes effect at each environment's next reset, autoresets included.

        Raises:
            ValueError: a value that the simulator cannot have; nothing has changed then.
            TypeError: not a number.
            NotImplementedError: this simulator's difficulty is fixed.
        """
        if not hasattr(self._native, "set_difficulty"):
            raise NotImplementedError(f"{self.name} has a fixed number of agents and a fixed density")
        self._native.set_difficulty(
            self._one_per_env("num_agents", num_agents, "iu", np.int64),
            self._one_per_env("density", density, "fiu", np.float64),
        )

    def _one_per_env(self, name: str, value: object, kinds: str, dtype: type) -> NDArray[Any] | None:
        if value is None:
            return None
        array = np.asarray(value)
        if array.dtype.kind not in kinds:
            noun = "an integer or integers" if kinds == "iu" else "a number or numbers"
            raise TypeError(f"{name}: expected {noun} of shape ({self.num_envs},), got {value!r}")
        if array.shape not in ((), (self.num_envs,)):
            raise ValueError(f"{name}: expected one, or shape ({self.num_envs},), got shape {array.shape}")
        return np.array(np.broadcast_to(array, (self.num_envs,)), dtype)

    def episodes(self) -> dict[str, NDArray[Any]]:
        """Statistics of the last finished episode of each environment, [K] each.

        `finished` int64: the number of episodes finished so far. The others are float64, NaN before the first end:
        `length` in steps, `return_mean` (mean over the agents of their sums of rewards), `num_agents`,
        `collision_rate` (share of the agents that crashed), `mean_speed` m/s, `throughput` vehicles/h, `min_ttc` s
        (the shortest time to collision of any agent), `success` (share of the agents that reached their goal),
        `driving_time` s (of all agents together), `arrival_time` s (mean over the agents that arrived, from the start
        of the episode). A value that the simulator does not know is NaN. Measures of one simulator alone follow,
        `v2i_rate` for example.
        """
        unknown = {key: np.full(self.num_envs, np.nan) for key in EPISODE_FIELDS}
        logged = {} if self._log is None else self._log.episodes()
        if not hasattr(self._native, "episodes"):
            return unknown | logged
        returns = {"return_mean": logged["return_mean"]} if logged else {}
        return unknown | self._native.episodes() | returns

    @property
    def has_scenes(self) -> bool:
        """True if `scene` and `render` work."""
        return hasattr(self._native, "scene")

    def scene(self, index: int = 0) -> TrafficScene:
        """The present scene of one environment. Raises NotImplementedError if this simulator has no scenes."""
        if not self.has_scenes:
            raise NotImplementedError(f"{self.name} has no scenes to draw")
        return self._native.scene(index)

    @property
    def render_modes(self) -> Sequence[str]:
        return RENDER_MODES if self.has_scenes else ()

    def render(self, mode: str = "rgb_array") -> tuple[Any, ...]:
        """A picture of each environment, uint8 [H, W, 3], drawn by `view`; with the mode "ansi" a text, if it has
        texts."""
        return tuple(self.view.draw(self.scene(i)) for i in range(self.num_envs))

    def save_state(self, index: int | None = None) -> bytes:
        """The complete state, random generators included, of all environments or of one of them, for `load_state` of
        as many environments with the same options, and for `branch`."""
        native: bytes = self._native.save_state(index)
        return native if self._log is None else native + self._log.save_state(index)

    def load_state(self, state: bytes, index: int | None = None) -> None:
        """Restores a state of `save_state`, in all environments or in one of them. Raises ValueError if it is damaged
        or of other options, IndexError if there is no such environment, and then nothing has changed."""
        count = self.num_envs if index is None else 1
        self._restore(state, count, index, lambda native: self._native.load_state(native, index))
        # In the others the streams are seeded only if they were before.
        self._was_reset = self._was_reset or index is None

    def branch(
        self, state: bytes, num_envs: int, *, seed: int | Sequence[int] | NDArray[np.uint64] | None = None
    ) -> Self:
        """New environments with the options and the `reward` of these, all in the state of one; see
        `fastrl.envs.NativeVectorEnv.branch`."""
        made, seeds = self.rebuilt(num_envs), None if seed is None else as_seeds(seed, num_envs)
        made.reward = self.reward
        made._restore(state, 1, None, lambda native: made._native.branch(native, seeds))
        made._was_reset = True
        return made

    def _restore(self, state: bytes, count: int, index: int | None, native: Callable[[bytes], None]) -> None:
        """Restores the state of so many environments, with ``native`` the part of it that is compiled."""
        if self._log is None:
            native(state)
            return
        compiled, log = self._log.split(state, count)
        native(compiled)
        self._log.set(log, index)

    def close(self) -> None:
        """Frees the environments. May be called again."""
        self._native.close()


def reset_ended(
    native: Any,
    acted: NDArray[np.bool_],
    left: NDArray[np.bool_],
    obs: NDArray[Any],
    final_obs: NDArray[Any] | None,
    alive: NDArray[np.bool_] | None,
) -> None:
    """Does what the mode "same_step" asks for: resets environments whose last agent ended with a step.

    Args:
        native: the environments, with the interface of `fastrl._native._rust.NativeVec`.
        acted, left: bool, [K, A] or as flat, agents before the step and after it.
        obs, final_obs, alive: of the step; written.
    """
    over: NDArray[np.bool_] = np.any(acted.reshape(native.num_envs, -1), axis=1)
    over &= ~np.any(left.reshape(native.num_envs, -1), axis=1)
    if over.any():
        if final_obs is not None:
            rows = np.repeat(over, native.num_agents)
            final_obs[rows] = obs[rows]
        native.reset(obs, None, over, alive)
