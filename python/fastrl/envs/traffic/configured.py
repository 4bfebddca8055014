"""The base of single environments with a config in highway-env's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from numpy.typing import NDArray

from fastrl.envs.single import SingleEnv
from fastrl.envs.traffic.config_interfaces import action_names
from fastrl.envs.traffic.config_kind import agent_config
from fastrl.envs.viewer import RENDER_MODES


class VehicleState(NamedTuple):
    """A copy of the controlled vehicle's present state, with highway-env's names.

    Attributes:
        position: x and y, m, float64 [2].
        heading: rad.
        speed: m/s.
        lane_index, target_lane_index: road sections, and last the number of the lane.
        target_speed: m/s.
        crashed: whether it has collided with another.
    """

    position: NDArray[np.float64]
    heading: float
    speed: float
    lane_index: tuple[str, str, int]
    target_lane_index: tuple[str, str, int]
    target_speed: float
    crashed: bool


class ActionType(NamedTuple):
    """Names of the actions of DiscreteMetaAction."""

    actions: dict[int, str]
    actions_indexes: dict[str, int]
    get_available_actions: Callable[[], list[int]]


class ConfiguredEnv(SingleEnv):
    """One environment, for `gymnasium.make`.

    As in highway-env `config` may be changed: edit `env.unwrapped.config`, call `configure`, or pass
    `reset(options={"config": {...}})`. A change takes effect at the next reset, spaces included.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 2}  # noqa: RUF012
    vector: Any

    def _fixed(self) -> dict[str, Any]:
        """Options of the constructor beside the config."""
        return {}

    def _build(self, options: Mapping[str, Any]) -> None:
        super()._build({**options, **self._fixed(), "info": False})
        self.config = deepcopy(self.vector.config)

    def configure(self, config: Mapping[str, Any]) -> None:
        """Changes the config from the next reset on."""
        self.config = self.vector.kind.check(config, self.config)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode. `options={"config": {...}}` changes the config first, as `configure` does."""
        options = dict(options or {})
        changes = options.pop("config", {})
        if options:
            raise ValueError(f"options: expected 'config' or nothing, got {', '.join(map(repr, options))}")
        self.configure(changes)
        if not data_equivalence(self.config, self.vector.config):
            old = self.vector
            self._build({"config": self.config})
            self.vector.copy_generators(old)
            old.close()
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info | {"action": action}

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        """highway-env's info in plain Python."""
        return {key: plain(value) for key, value in self.vector.read_info().items()}

    @property
    def vehicle(self) -> VehicleState:
        """The controlled vehicle. `vehicles()` has all of them."""
        if not self.vector.was_reset:
            raise gymnasium.error.ResetNeeded("there is no vehicle yet: call reset() first")
        vehicles = self.vector.vehicles()
        own = int(np.flatnonzero(vehicles["agent"] == 0)[0]) if "agent" in vehicles else 0
        first = {key: value[own].item() for key, value in vehicles.items()}
        indices = self.vector.lane_indices()
        return VehicleState(
            np.array([first["x"], first["y"]]),
            first["heading"],
            first["speed"],
            indices[first["lane"]],
            indices[first["target_lane"]],
            first["target_speed"],
            first["crashed"],
        )

    @property
    def action_type(self) -> ActionType:
        """Names of the actions: `env.unwrapped.action_type.actions_indexes["IDLE"]`."""
        names = dict(enumerate(action_names(agent_config(self.vector.config))))
        return ActionType(names, {name: i for i, name in names.items()}, self.get_available_actions)

    def set_record_video_wrapper(self, wrapper: Any) -> None:
        """Sets the frame rate of `gymnasium.wrappers.RecordVideo` to the speed of highway-env's films. There is a
        picture of each step, none of the simulation frames in between."""
        wrapper.frames_per_sec = self.metadata["render_fps"]

    def __deepcopy__(self, memo: dict[int, Any]) -> ConfiguredEnv:
        """A copy in the same state, for planners that simulate ahead."""
        build: Any = type(self)
        twin: ConfiguredEnv = build(config=self.vector.config, render_mode=self.render_mode, **self._fixed())
        memo[id(self)] = twin
        twin.config = deepcopy(self.config, memo)
        twin.spec = deepcopy(self.spec, memo)
        twin._np_random, twin._np_random_seed = deepcopy(self._np_random, memo), self._np_random_seed
        if self.vector.was_reset:
            twin.load_state(self.save_state())
        return twin

    def get_available_actions(self) -> list[int]:
        """The actions that can have an effect now, see `action_masks` of the vector environment."""
        return [int(action) for action in np.flatnonzero(self.vector.action_masks()[0])]

    def action_masks(self) -> NDArray[np.bool_]:
        """Bool [num_actions], see `action_masks` of the vector environment."""
        masks: NDArray[np.bool_] = self.vector.action_masks()[0]
        return masks

    def vehicles(self) -> dict[str, NDArray[Any]]:
        """See `vehicles` of the vector environment."""
        vehicles: dict[str, NDArray[Any]] = self.vector.vehicles()
        return vehicles


def plain(value: Any) -> Any:
    """The first environment's part of an info; numbers as Python's."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    first = value[0]
    return first if first.ndim else first.item()
