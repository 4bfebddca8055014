"""Gymnasium's `VectorEnv` over a compiled simulator.

The compiled side steps all environments at once and writes into arrays that the caller owns. `step` allocates new
arrays, as Gymnasium users expect; `step_into` writes into a trainer's arrays, such as step t of a rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, Tuple, flatdim
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from fastrl._native._rust import AsyncVec, TrafficScene
from fastrl.envs.viewer import RENDER_MODES, View, Viewer

if TYPE_CHECKING:
    from fastrl._native._rust import NativeVec  # which only the type checker knows

SEED_LIMIT = 2**64

# An episode that has ended in a rollout: step, environment, number, return, length, values of infos.
RolloutEnd = tuple[int, int, int, float, int, list[float]]

# Many steps in one call, see ``rollout`` of the compiled classes.
CompiledRollout = Callable[..., tuple[list[RolloutEnd], float]]


def as_seed(seed: object) -> int:
    """Checks one seed: an integer from 0 to 2^64 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"seed: expected an integer, got {type(seed).__name__}")
    if not 0 <= int(seed) < SEED_LIMIT:
        raise ValueError(f"seed: expected 0 to 2**64 - 1, got {seed}")
    return int(seed)


def as_seeds(seed: Any, num_envs: int) -> NDArray[np.uint64]:
    """One seed an environment, uint64 [N]: `seed + i` for environment i, or the given list.

    Raises:
        TypeError, ValueError: not N seeds, or one that `as_seed` refuses.
    """
    if isinstance(seed, np.ndarray) and seed.dtype == np.uint64 and seed.shape == (num_envs,):
        return seed
    if isinstance(seed, list | tuple | np.ndarray):
        if len(seed) != num_envs:
            raise ValueError(f"seed: expected {num_envs} seeds, got {len(seed)}")
        if any(each is None for each in seed):
            raise ValueError("seed: expected a list of integers, got one with None")
        return np.array([as_seed(each) for each in seed], np.uint64)
    first = as_seed(seed)
    as_seed(first + num_envs - 1)
    return np.arange(num_envs, dtype=np.uint64) + np.uint64(first)


def as_actions(
    actions: Any, space: Space[Any], batch_shape: tuple[int, ...], *, keep_float64: bool = False
) -> NDArray[Any]:
    """A batch of actions in the dtype that the compiled side takes; it checks the values itself.

    Args:
        actions: [*batch_shape, *S] for the shape S of `space`.
        space: the action space of one agent.
        keep_float64: numbers that come as float64 stay float64; otherwise they are rounded to float32.

    Returns:
        C-contiguous int64 where the space is discrete, else float32 (or float64).

    Raises:
        TypeError: neither integers nor, for a `Box`, numbers.
        ValueError: another shape, or an integer beyond int64.
    """
    array = np.asarray(actions)
    shape = (*batch_shape, *(space.shape or ()))
    continuous = isinstance(space, Box)
    kinds, noun = ("iuf", "numbers") if continuous else ("iu", "integers")
    if array.dtype.kind not in kinds:
        raise TypeError(f"actions: expected {noun} of shape {shape}, got dtype {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"actions: expected {noun} of shape {shape}, got shape {array.shape}")
    if continuous:
        single = not keep_float64 or (array.dtype.kind == "f" and array.dtype.itemsize <= 4)
        # A number that overflows becomes an infinity, which the compiled side refuses.
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, np.float32 if single else np.float64)
    if array.dtype == np.uint64 and array.size and array.max() >= SEED_LIMIT // 2:
        raise ValueError(f"actions: expected numbers below 2**63, got {array.max()}")
    return np.ascontiguousarray(array, np.int64)


def in_space(space: Space[Any], rows: NDArray[np.float32]) -> Any:
    """Rows [N, D] as a batch in the shape and dtype of a space. The parts of a Tuple lie side by side in a row, and
    become a tuple of arrays [N, *S]."""
    if isinstance(space, Tuple):
        ends = np.cumsum([flatdim(part) for part in space])
        parts = np.split(rows, ends[:-1], axis=1)
        return tuple(in_space(part, own) for part, own in zip(space, parts, strict=True))
    return rows.reshape(len(rows), *(space.shape or ())).astype(space.dtype, copy=False)


def as_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Accepts Gymnasium's enum, its value (`"NextStep"`) or its name in any case (`"next_step"`)."""
    if isinstance(mode, AutoresetMode):
        return mode
    for known in AutoresetMode:
        if mode == known.value or str(mode).upper() == known.name:
            return known
    names = ", ".join(repr(known.name.lower()) for known in AutoresetMode)
    raise ValueError(f"autoreset_mode: expected {names} or gymnasium's AutoresetMode, got {mode!r}")


def _add_masks(info: dict[str, Any], mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Gymnasium's form of an info that only some environments have: zeros elsewhere, and a mask for each key."""
    masked: dict[str, Any] = {}
    for key, value in info.items():
        if isinstance(value, dict):
            masked[key] = _add_masks(value, mask)
        else:
            masked[key] = np.zeros_like(value)
            masked[key][mask] = value[mask]
        masked[f"_{key}"] = mask.copy()
    return masked


class Rebuilt:
    """Vector environments that can be built once more, with the same options."""

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        made._arguments = args, options
        return made

    def rebuilt(self, num_envs: int) -> Self:
        """A new vector environment of so many environments, whose first argument is their number."""
        args, options = self._arguments
        others = {name: value for name, value in options.items() if name != "num_envs"}
        return type(self)(num_envs, *args[1:], **others)


class NativeVectorEnv(Rebuilt, VectorEnv[Any, Any, Any]):
    """N environments of a compiled simulator.

    Observations are [N, *S] for the space's shape S and in its dtype, rewards float64 [N], terminations and
    truncations bool [N]; actions are integers [N] where the action space is discrete, else float32 [N, n]. `reset_into`
    and `step_into` write float32 [N, obs_dim], obs_dim being the product of S; they take arrays [N, *S] as well. Each
    environment has its own random stream: `reset(seed=s)` gives environment i the seed s + i, a list gives each its
    own, and without a seed the streams continue. Results do not depend on the number of threads.

    The counterpart for several agents is `fastrl.envs.multi_agent.MultiAgentVectorEnv`. The two share the checks of
    seeds and actions, and the compiled code, but no base class: this one follows Gymnasium's interface (attributes,
    spaces of a batch, infos with masks), to which the flags of agents and the returns of episodes do not fit.

    Attributes:
        was_reset: `reset` or `load_state` was called, so that the random streams are seeded.
        num_masked: width of an action mask; 0: the simulator has none.
        view: draws scenes; None: the simulator has none.

    Args:
        native: builds the compiled object for the autoreset mode that it is given ("next_step", "same_step",
            "disabled").
        observation_space, action_space: of one environment.
        autoreset_mode: Gymnasium's enum or the name of a mode.
        render_mode: one of the `render_modes`, or None.
        info_of: reads `info` after each step: a dict of arrays [N, ...] or of such dicts.
        render_modes: modes that `render` offers; for "ansi" the compiled object gives the texts.
        view: how the pictures of a simulator with scenes are drawn; it adds "rgb_array" and "human".
        fps: steps a second at which pictures show real time.

    Raises:
        MemoryError: the environments do not fit into memory.
        ValueError: an unknown mode.
    """

    # Actions that come as float64 are passed on as float64.
    _keeps_float64 = False
    # Of the rows that `reset` and `step` make.
    _row_dtype: type[np.floating] = np.float32

    def __init__(
        self,
        native: Callable[[str], NativeVec],
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        autoreset_mode: AutoresetMode | str,
        render_mode: str | None,
        info_of: Callable[[], dict[str, Any]] | None = None,
        render_modes: Sequence[str] = ("ansi",),
        view: View | None = None,
        fps: float = 1.0,
    ) -> None:
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        render_modes = [*render_modes, *(RENDER_MODES if view is not None else ())]
        if render_mode is not None and render_mode not in render_modes:
            names = ", ".join(map(repr, render_modes))
            raise ValueError(f"render_mode: expected None or {names}, got {render_mode!r}")
        self.render_mode = render_mode
        self.metadata = {"render_modes": render_modes, "autoreset_mode": self.autoreset_mode}
        self._viewer: Viewer | None = None
        self.view = view
        if view is not None:
            self.metadata["render_fps"] = fps
            if render_mode is not None:
                self._viewer = Viewer(view, render_mode, fps=fps)
        self._info_of = info_of
        # The info of an episode's last step has to be read before its environment is reset, and its last observation
        # where the compiled side does not write it in the precision of the rows.
        reads_last = info_of is not None or self._row_dtype is not np.float32
        self._resets_in_python = self.autoreset_mode is AutoresetMode.SAME_STEP and reads_last
        mode = AutoresetMode.DISABLED if self._resets_in_python else self.autoreset_mode
        self._native = native(mode.name.lower())
        self.num_envs = self._native.num_envs
        self.num_masked = self._native.num_masked
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self._obs_shape = (self.num_envs, self._native.obs_dim)
        self._batch_shape = (self.num_envs, *(observation_space.shape or ()))
        self.was_reset = False
        self._attributes: dict[str, tuple[Any, ...]] = {}

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Starts new episodes; `options={"reset_mask": bool [N]}` selects the environments that are reset. The other
        environments keep their episodes and return their current observations."""
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        if options:
            raise ValueError(
                f"options: expected 'reset_mask' or nothing, got {', '.join(map(repr, options))}"
            )
        obs = np.empty(self._obs_shape, self._row_dtype)
        if mask is not None:
            self._native.observe(obs)
        self.reset_into(obs, seed=seed, reset_mask=mask)
        if self.render_mode == "human":
            self.render()
        return self._as_obs(obs), self._info()

    def reset_into(
        self,
        obs: NDArray[np.float32],
        *,
        seed: int | Sequence[int | None] | NDArray[np.uint64] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Does as `reset`, into `obs`, float32 [N, obs_dim]: writes the observations of the environments that it resets
        and leaves the others as they are."""
        self._native.reset(self._flat(obs), self._seeds(seed), reset_mask)
        self.was_reset = True

    def observe_into(self, obs: NDArray[np.float32]) -> None:
        """Writes the current observations of all environments, float32 [N, obs_dim]."""
        self._native.observe(self._flat(obs))

    def _batch(self, actions: Any) -> NDArray[Any]:
        """Actions of all environments as the compiled side takes them."""
        return as_actions(
            actions, self.single_action_space, (self.num_envs,), keep_float64=self._keeps_float64
        )

    def _as_obs(self, obs: NDArray[np.float32]) -> Any:
        """Observations in the shape and dtype of the observation space."""
        return in_space(self.single_observation_space, obs)

    def episode_info(self, key: str) -> NDArray[np.float64]:
        """A number of each environment's present episode, float64 [N]; NaN if the simulator does not know the key."""
        out = np.empty(self.num_envs)
        self._native.episode_info(key, out)
        return out

    def action_masks(self, out: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
        """The actions that may have an effect now, as far as the agents can know, bool [N, num_masked].

        Raises:
            ValueError: the simulator has no masks.
        """
        if out is None:
            out = np.empty((self.num_envs, self.num_masked), np.bool_)
        self._native.action_masks(out)
        return out

    def _flat(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """View of the same memory as [N, obs_dim]; an array of another shape is left to the compiled side to refuse."""
        if self._batch_shape == self._obs_shape or not isinstance(obs, np.ndarray):
            return obs
        fits = obs.shape == self._batch_shape and obs.flags.c_contiguous
        return obs.reshape(self._obs_shape) if fits else obs

    def _seeds(self, seed: Any) -> NDArray[np.uint64] | None:
        if seed is None:
            super().reset(seed=None)
            if self.was_reset:
                return None
            return self.np_random.integers(SEED_LIMIT, size=self.num_envs, dtype=np.uint64, endpoint=False)
        seeds = as_seeds(seed, self.num_envs)
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
        return seeds

    def step(
        self, actions: Any
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Steps every environment. In SAME_STEP mode, when episodes end, `info` has `final_obs` [N, *S] with
        its mask `_final_obs`, and `final_info` with `_final_info`."""
        obs = np.empty(self._obs_shape, self._row_dtype)
        rewards = np.empty(self.num_envs, np.float64)
        terminations = np.empty(self.num_envs, np.bool_)
        truncations = np.empty(self.num_envs, np.bool_)
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        final_obs = np.zeros(self._obs_shape, self._row_dtype) if same_step else None
        final_info = self._step(self._batch(actions), obs, rewards, terminations, truncations, final_obs)
        if self.render_mode == "human":
            self.render()
        info = self._info()
        ended = terminations | truncations
        if final_obs is not None and ended.any():
            info |= {
                "final_obs": self._as_obs(final_obs),
                "_final_obs": ended,
                "final_info": _add_masks(final_info, ended),
                "_final_info": ended.copy(),
            }
        return self._as_obs(obs), rewards, terminations, truncations, info

    def step_into(
        self,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[np.float32] | None = None,
    ) -> None:
        """Does as `step`, into the caller's arrays, and allocates nothing.

        The arrays are C-contiguous and share no memory: actions int64 [N] or float32 [N, n], obs float32 [N, obs_dim],
        rewards float32 or float64 [N], terminations and truncations bool [N]. `final_obs`, float32 [N, obs_dim],
        belongs to SAME_STEP mode: where an episode ended it gets the last observation, elsewhere it is left as it is.
        The GIL is released during the call, so no other thread may touch the arrays.

        Raises:
            TypeError: a wrong dtype.
            ValueError: a wrong shape, strides, a read-only array, or an action out of range.
            gymnasium.error.ResetNeeded: an environment has to be reset first.
            Nothing has changed then.
        """
        final_obs = None if final_obs is None else self._flat(final_obs)
        self._step(actions, self._flat(obs), rewards, terminations, truncations, final_obs)

    def _step(
        self,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[np.float32] | None,
    ) -> dict[str, Any]:
        """Steps, and returns the info of the episodes that ended, if there is an `info_of`."""
        if not self._resets_in_python:
            self._native.step(actions, obs, rewards, terminations, truncations, final_obs)
            return {}
        self._native.step(actions, obs, rewards, terminations, truncations)
        ended = terminations | truncations
        if not ended.any():
            return {}
        final_info = {} if self._info_of is None else self._info_of()
        if final_obs is not None:
            final_obs[ended] = obs[ended]
        self._native.reset(obs, None, ended)
        return final_info

    def _info(self) -> dict[str, Any]:
        if self._info_of is None:
            return {}
        return _add_masks(self._info_of(), np.ones(self.num_envs, np.bool_))

    def render(self) -> tuple[Any, ...] | None:
        """One text an environment with `render_mode="ansi"`, one picture uint8 [H, W, 3] with "rgb_array". In mode
        "human" it shows the first environment in a window, as `reset` and `step` do, and returns None."""
        if self.render_mode is None:
            return None
        native: Any = self._native
        if self._viewer is not None:
            return self._viewer.render(native)
        return tuple(native.render(i) for i in range(self.num_envs))

    def scene(self, index: int = 0) -> TrafficScene:
        """The present scene of one environment, of a simulator with a `view`."""
        native: Any = self._native
        return native.scene(index)

    @property
    def compiled_rollout(self) -> CompiledRollout | None:
        """Takes many steps of every environment in one call, whose actions a compiled network chooses, whatever the
        autoreset mode; see ``rollout`` of the compiled classes. None: the simulator has none for its spaces."""
        has_one = self._row_dtype is np.float32 and isinstance(self.single_action_space, Discrete | Box)
        return getattr(self._native, "rollout", None) if has_one else None

    def save_state(self, index: int | None = None) -> bytes:
        """The complete state, random generators included, of all environments or of one of them, for `load_state` of
        as many environments with the same options, and for `branch`."""
        return self._native.save_state(index)

    def load_state(self, state: bytes, index: int | None = None) -> None:
        """Restores a state of `save_state`, in all environments or in one of them. Bytes of unknown origin are safe to
        load.

        Raises:
            ValueError: the state is damaged, of other options, or altered so that the simulator cannot continue from
                it. Nothing has changed then.
            IndexError: there is no such environment.
        """
        self._native.load_state(state, index)
        # In the others the streams are seeded only if they were before.
        self.was_reset = self.was_reset or index is None

    def branch(
        self, state: bytes, num_envs: int, *, seed: int | Sequence[int] | NDArray[np.uint64] | None = None
    ) -> Self:
        """New environments with the options of these, all in the state of one.

        Args:
            state: of `save_state` with an index, at any step of an episode.
            num_envs: N, how many.
            seed: starts a random stream in each, as of `reset`; equal seeds are common random numbers: as long as the
                actions are the same, so are the episodes. None: all draw on as the saved environment does.

        Raises:
            ValueError, MemoryError: as of `load_state`.
        """
        made = self.rebuilt(num_envs)
        made._native.branch(state, None if seed is None else as_seeds(seed, num_envs))
        made.was_reset = True
        return made

    def asynchronous(
        self, seed: int, *, same_step: bool, num_threads: int = 0, episode_info: Sequence[str] = ()
    ) -> AsyncVec:
        """Hands the environments over to be stepped one by one, for `fastrl.envs.AsyncNativeVectorEnv`, and closes this
        object. Raises ValueError for environments of several agents."""
        native = self._native.asynchronous(
            seed, same_step=same_step, num_threads=num_threads, episode_info=list(episode_info)
        )
        self.close()
        return native

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The attribute `name`, called if it is callable, as one value an environment: an array [N, ...] is split,
        anything else is the same for all."""
        if name in self._attributes:
            return self._attributes[name]
        if name.startswith("_"):
            raise AttributeError(f"{name!r} is private")
        value = getattr(self, name)
        if callable(value):
            value = value(*args, **kwargs)
        if isinstance(value, np.ndarray) and value.ndim and len(value) == self.num_envs:
            return tuple(value)
        return (value,) * self.num_envs

    def get_attr(self, name: str) -> tuple[Any, ...]:
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Stores one value an environment under a new name. Options of the simulator cannot be changed."""
        if hasattr(self, name) and name not in self._attributes:
            raise AttributeError(
                f"{name!r} is fixed when the environment is made: make a new one to change it"
            )
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"values: expected {self.num_envs} for {name!r}, got {len(values)}")
        self._attributes[name] = tuple(values)

    def close_extras(self, **kwargs: Any) -> None:
        self._native.close()
        if self._viewer is not None:
            self._viewer.close()
