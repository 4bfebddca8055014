"""Gymnasium's `VectorEnv` over a compiled simulator.

The compiled side steps all environments at once and writes into arrays that the caller owns. `step` allocates them
as Gymnasium users expect; `step_into` takes a trainer's own, so that row t of a rollout is filled in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from fastrl._native._rust import AsyncVec
from fastrl.envs.viewer import RENDER_MODES, View, Viewer

SEED_LIMIT = 2**64


class NativeVec(Protocol):
    """What the compiled class of a simulator offers; `_rust.pyi` says what each method takes."""

    @property
    def num_envs(self) -> int: ...
    @property
    def obs_dim(self) -> int: ...
    def reset(
        self,
        obs: NDArray[np.float32],
        seeds: NDArray[np.uint64] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
    ) -> None: ...
    def observe(self, obs: NDArray[np.float32]) -> None: ...
    def step(
        self,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[np.float32] | None = None,
    ) -> None: ...
    def save_state(self) -> bytes: ...
    def load_state(self, state: bytes) -> None: ...
    def asynchronous(self, seed: int, *, same_step: bool, num_threads: int = 0) -> AsyncVec: ...
    def close(self) -> None: ...


def as_seed(seed: object) -> int:
    """Checks one seed: an integer from 0 to 2^64 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"seed: expected an integer, got {type(seed).__name__}")
    if not 0 <= int(seed) < SEED_LIMIT:
        raise ValueError(f"seed: expected 0 to 2**64 - 1, got {seed}")
    return int(seed)


def as_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Accepts Gymnasium's enum, its value (`"NextStep"`) or its name in any case (`"next_step"`)."""
    if isinstance(mode, AutoresetMode):
        return mode
    for known in AutoresetMode:
        if mode == known.value or str(mode).upper() == known.name:
            return known
    names = ", ".join(repr(known.name.lower()) for known in AutoresetMode)
    raise ValueError(f"autoreset_mode: expected {names} or gymnasium's AutoresetMode, got {mode!r}")


def _of_rows(info: dict[str, Any], rows: NDArray[np.bool_]) -> dict[str, Any]:
    """Gymnasium's form of what belongs to some environments: zero elsewhere, and a mask beside each key."""
    shown: dict[str, Any] = {}
    for key, value in info.items():
        if isinstance(value, dict):
            shown[key] = _of_rows(value, rows)
        else:
            shown[key] = np.zeros_like(value)
            shown[key][rows] = value[rows]
        shown[f"_{key}"] = rows.copy()
    return shown


class NativeVectorEnv(VectorEnv[Any, Any, Any]):
    """N environments of a compiled simulator.

    `native` builds the compiled object for the autoreset mode that it is given ("next_step", "same_step",
    "disabled"). With `info_of`, `info` carries what that function reads off the compiled object after each step: a
    dict of arrays [N, ...] or of such dicts. `render_modes` names what `render` offers; "ansi" asks the compiled
    object for texts. A simulator with scenes has a `view`: then there are "rgb_array" and "human" besides, and `fps`
    says how many steps a second are as fast as time.

    Observations are [N, *S] for the space's shape S and in its dtype, rewards float64 [N], terminations and
    truncations bool [N]; actions are integers [N] where the action space is discrete, else float32 [N, n]. `reset_into`
    and `step_into` write float32 [N, obs_dim], obs_dim being the product of S; [N, *S] will do as well. Each
    environment draws from its own stream: `reset(seed=s)` gives environment i the seed s + i, a list is taken as it
    is, no seed lets the streams run on. Results do not depend on the number of threads.

    More environments than fit into memory are a MemoryError when they are made.
    """

    # Whether numbers that come as float64 stay that. Otherwise they are rounded to float32.
    _takes_float64 = False

    def __init__(
        self,
        native: Callable[[str], NativeVec],
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        autoreset_mode: AutoresetMode | str,
        render_mode: str | None,
        info_of: Callable[[NativeVec], dict[str, Any]] | None = None,
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
        if view is not None:
            self.metadata["render_fps"] = fps
            if render_mode is not None:
                self._viewer = Viewer(view, render_mode, fps=fps)
        self._info_of = info_of
        # The end of an episode can only be looked into before its environment is reset.
        self._resets_itself = self.autoreset_mode is AutoresetMode.SAME_STEP and info_of is not None
        mode = AutoresetMode.DISABLED if self._resets_itself else self.autoreset_mode
        self._native = native(mode.name.lower())
        self.num_envs = self._native.num_envs
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self._obs_shape = (self.num_envs, self._native.obs_dim)
        self._shown_shape = (self.num_envs, *(observation_space.shape or ()))
        self._shown_dtype = observation_space.dtype
        self._was_reset = False
        self._attributes: dict[str, tuple[Any, ...]] = {}

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Starts new episodes; `options={"reset_mask": bool [N]}` selects the environments that do. The others go on,
        and their rows show the observation that they stand at."""
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        if options:
            raise ValueError(
                f"options: expected 'reset_mask' or nothing, got {', '.join(map(repr, options))}"
            )
        obs = np.empty(self._obs_shape, np.float32)
        if mask is not None:
            self._native.observe(obs)
        self.reset_into(obs, seed=seed, reset_mask=mask)
        if self.render_mode == "human":
            self.render()
        return self._shown(obs), self._info()

    def reset_into(
        self,
        obs: NDArray[np.float32],
        *,
        seed: int | Sequence[int | None] | NDArray[np.uint64] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """As `reset`; writes the rows of `obs` (float32 [N, obs_dim]) that it resets and leaves the others."""
        self._native.reset(self._flat(obs), self._seeds(seed), reset_mask)
        self._was_reset = True

    def observe_into(self, obs: NDArray[np.float32]) -> None:
        """Writes what every environment shows now, float32 [N, obs_dim]."""
        self._native.observe(self._flat(obs))

    def _shown(self, obs: NDArray[np.float32]) -> NDArray[Any]:
        """Rows as the observation space has them."""
        return obs.reshape(self._shown_shape).astype(self._shown_dtype, copy=False)

    def _flat(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows as the compiled side writes them, in the same memory; it refuses what has neither shape."""
        if self._shown_shape == self._obs_shape or not isinstance(obs, np.ndarray):
            return obs
        fits = obs.shape == self._shown_shape and obs.flags.c_contiguous
        return obs.reshape(self._obs_shape) if fits else obs

    def _seeds(self, seed: Any) -> NDArray[np.uint64] | None:
        if seed is None:
            super().reset(seed=None)
            if self._was_reset:
                return None
            return self.np_random.integers(SEED_LIMIT, size=self.num_envs, dtype=np.uint64, endpoint=False)
        if isinstance(seed, list | tuple | np.ndarray):
            if isinstance(seed, np.ndarray) and seed.dtype == np.uint64 and seed.shape == (self.num_envs,):
                return seed
            if len(seed) != self.num_envs:
                raise ValueError(f"seed: expected {self.num_envs} seeds, got {len(seed)}")
            if any(s is None for s in seed):
                raise ValueError("seed: expected a list of integers, got one with None")
            return np.array([as_seed(s) for s in seed], np.uint64)
        first = as_seed(seed)
        as_seed(first + self.num_envs - 1)
        super().reset(seed=first)
        return np.arange(self.num_envs, dtype=np.uint64) + np.uint64(first)

    def step(
        self, actions: Any
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Steps every environment. In SAME_STEP mode, when episodes end, `info` has `final_obs` [N, *S] with
        its mask `_final_obs`, and `final_info` with `_final_info`."""
        obs = np.empty(self._obs_shape, np.float32)
        rewards = np.empty(self.num_envs, np.float64)
        terminations = np.empty(self.num_envs, np.bool_)
        truncations = np.empty(self.num_envs, np.bool_)
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        final_obs = np.zeros(self._obs_shape, np.float32) if same_step else None
        final_info = self._step(self._as_actions(actions), obs, rewards, terminations, truncations, final_obs)
        if self.render_mode == "human":
            self.render()
        info = self._info()
        ended = terminations | truncations
        if final_obs is not None and ended.any():
            info |= {
                "final_obs": self._shown(final_obs),
                "_final_obs": ended,
                "final_info": _of_rows(final_info, ended),
                "_final_info": ended.copy(),
            }
        return self._shown(obs), rewards, terminations, truncations, info

    def step_into(
        self,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[np.float32] | None = None,
    ) -> None:
        """As `step`, into the caller's arrays; nothing is allocated.

        All are C-contiguous and share no memory: actions int64 [N] or float32 [N, n], obs float32 [N, obs_dim],
        rewards float32 or float64 [N], terminations and truncations bool [N]. `final_obs` float32 [N, obs_dim]
        belongs to SAME_STEP mode: rows whose episode ended get its last observation, the others are left as they
        are. The GIL is released meanwhile, so no other thread may touch the arrays. Raises TypeError (dtype),
        ValueError (shape, strides, read-only, action out of range) or `gymnasium.error.ResetNeeded`, and then nothing
        has changed.
        """
        obs = self._flat(obs)
        final_obs = None if final_obs is None else self._flat(final_obs)
        if self._resets_itself:
            self._step(actions, obs, rewards, terminations, truncations, final_obs)
        else:
            self._native.step(actions, obs, rewards, terminations, truncations, final_obs)

    def _step(
        self,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[np.float32] | None,
    ) -> dict[str, Any]:
        """Steps; returns the info of the episodes that ended, where it can be had."""
        if not self._resets_itself or self._info_of is None:
            self._native.step(actions, obs, rewards, terminations, truncations, final_obs)
            return {}
        self._native.step(actions, obs, rewards, terminations, truncations)
        ended = terminations | truncations
        if not ended.any():
            return {}
        final_info = self._info_of(self._native)
        if final_obs is not None:
            final_obs[ended] = obs[ended]
        self._native.reset(obs, None, ended)
        return final_info

    def _as_actions(self, actions: Any) -> NDArray[Any]:
        array = np.asarray(actions)
        if isinstance(self.single_action_space, Box):
            expected = (self.num_envs, *self.single_action_space.shape)
            if array.dtype.kind not in "iuf":
                raise TypeError(f"actions: expected numbers of shape {expected}, got dtype {array.dtype}")
            single = not self._takes_float64 or (array.dtype.kind == "f" and array.dtype.itemsize <= 4)
            with np.errstate(over="ignore"):  # an infinity is refused with the others
                return np.ascontiguousarray(array, np.float32 if single else np.float64)
        if array.dtype.kind not in "iu":
            raise TypeError(
                f"actions: expected integers of shape ({self.num_envs},), got dtype {array.dtype}"
            )
        if array.dtype == np.uint64 and array.size and array.max() >= SEED_LIMIT // 2:
            raise ValueError(f"actions: expected numbers below 2**63, got {array.max()}")
        return np.ascontiguousarray(array, np.int64)

    def _info(self) -> dict[str, Any]:
        if self._info_of is None:
            return {}
        return _of_rows(self._info_of(self._native), np.ones(self.num_envs, np.bool_))

    def render(self) -> tuple[Any, ...] | None:
        """With `render_mode="ansi"` one text an environment, with "rgb_array" one picture, uint8 [H, W, 3]; "human"
        shows the first environment in a window, as `reset` and `step` do by themselves, and gives None."""
        if self.render_mode is None:
            return None
        native: Any = self._native
        if self._viewer is not None:
            return self._viewer.render(native)
        return tuple(native.render(i) for i in range(self.num_envs))

    def save_state(self) -> bytes:
        """Everything that the future depends on, generators included; for `load_state` of an equal environment."""
        return self._native.save_state()

    def load_state(self, state: bytes) -> None:
        """Restores what `save_state` gave. Raises ValueError if it is damaged, of other options, or altered so that the
        simulator cannot go on from it, and then nothing has changed. Bytes of unknown origin are safe to load."""
        self._native.load_state(state)
        self._was_reset = True

    def asynchronous(self, seed: int, *, same_step: bool, num_threads: int = 0) -> AsyncVec:
        """Closes this and gives its environments to be stepped one by one: what `fastrl.envs.AsyncNativeVectorEnv` is
        made of. Raises ValueError for environments of several agents."""
        native = self._native.asynchronous(seed, same_step=same_step, num_threads=num_threads)
        self.close()
        return native

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The attribute `name`, called if it can be, as one value an environment: an array with one row an
        environment is taken apart, anything else is the same for all."""
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
        """Keeps a value an environment under a name of the caller's. Options of the simulator are fixed."""
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
