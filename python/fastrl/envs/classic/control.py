"""Gymnasium's classic control, compiled: `fastrl/CartPole-v1`, `fastrl/Pendulum-v1`, `fastrl/Acrobot-v1`,
`fastrl/MountainCar-v0` and `fastrl/MountainCarContinuous-v0`.

Spaces, time limits and options are those of Gymnasium's ids; the same seed and the same actions give the same episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.single import SingleEnv
from fastrl.envs.vector import NativeVectorEnv
from fastrl.envs.viewer import RENDER_MODES
from fastrl.utils.arguments import LARGEST_UINT32, as_integer, as_number

Space = Box | Discrete


class _Task(NamedTuple):
    """Facts of a task from Gymnasium: bounds of observations, actions, pictures a second, the number of variables of
    its state, and an option with its default."""

    high: tuple[float, ...]
    actions: Callable[[], Space]
    fps: int
    variables: int = 2
    option: str | None = "goal_velocity"
    default: float | bool = 0.0
    low: tuple[float, ...] | None = None


def _box(bound: float) -> Callable[[], Space]:
    return lambda: Box(-bound, bound, (1,), np.float32)


_CAR: dict[str, Any] = {"high": (0.6, 0.07), "low": (-1.2, -0.07), "fps": 30}
_TASKS = {
    "CartPole": _Task(
        (4.8, np.inf, 24 * 2 * pi / 360, np.inf), lambda: Discrete(2), 50, 4, "sutton_barto_reward", False
    ),
    "Pendulum": _Task((1.0, 1.0, 8.0), _box(2.0), 30, option="g", default=10.0),
    "Acrobot": _Task((1.0, 1.0, 1.0, 1.0, 4 * pi, 9 * pi), lambda: Discrete(3), 15, 4, option=None),
    "MountainCar": _Task(actions=lambda: Discrete(3), **_CAR),
    "MountainCarContinuous": _Task(actions=_box(1.0), **_CAR),
}


class ClassicVectorEnv(NativeVectorEnv):
    """N environments of a task of classic control, stepped natively.

    Args:
        num_envs: N.
        task: "CartPole", "Pendulum", "Acrobot", "MountainCar" or "MountainCarContinuous".
        num_threads: threads that step the environments; 0 for one a core.
        autoreset_mode: see `NativeVectorEnv`.
        max_episode_steps: steps after which an episode is truncated; None: never. The ids have Gymnasium's limits.
        render_mode: "rgb_array" or "human", for Gymnasium's pictures, which need pygame.
        options: Gymnasium's: ``sutton_barto_reward`` of CartPole, ``g`` of Pendulum, ``goal_velocity`` of the mountain
            cars.

    Raises:
        TypeError, ValueError: an option that the task does not have, or that is out of its range.
    """

    _native: _rust.ClassicVec

    def __init__(
        self,
        num_envs: int = 1,
        *,
        task: str = "CartPole",
        num_threads: int = 0,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        if task not in _TASKS:
            raise ValueError(f"task: expected one of {', '.join(map(repr, _TASKS))}, got {task!r}")
        known = _TASKS[task]
        for name in options.keys() - {known.option}:
            raise TypeError(f"{task} has no option {name!r}, its options are: {known.option or 'none'}")
        value = options.get(known.option or "", known.default)
        if isinstance(known.default, bool) and not isinstance(value, bool | np.bool_):
            raise TypeError(f"{known.option}: expected True or False, got {value!r}")
        number = float(value) if isinstance(known.default, bool) else as_number(str(known.option), value)
        num_envs, num_threads = as_integer("num_envs", num_envs, 0), as_integer("num_threads", num_threads, 0)
        limit = LARGEST_UINT32
        if max_episode_steps is not None:
            limit = as_integer("max_episode_steps", max_episode_steps, 1)
        high = np.array(known.high, np.float32)
        low = -high if known.low is None else np.array(known.low, np.float32)
        super().__init__(
            lambda mode: _rust.ClassicVec(
                num_envs,
                task=task,
                option=number,
                limit=limit,
                num_threads=num_threads,
                autoreset_mode=mode,
            ),
            Box(low, high, dtype=np.float32),
            known.actions(),
            autoreset_mode=autoreset_mode,
            render_mode=render_mode,
            render_modes=RENDER_MODES,
        )
        self.metadata["render_fps"] = known.fps
        self._task = task
        self._drawn: gymnasium.Env[Any, Any] | None = None

    def variables(self) -> NDArray[np.float64]:
        """The variables of the tasks, as Gymnasium's ``env.unwrapped.state`` has them: CartPole's position (m),
        velocity, angle (rad) and angular velocity; Pendulum's angle and angular velocity; Acrobot's two angles and two
        angular velocities; a mountain car's position and velocity. Float64 [N, 2 or 4]."""
        rows = [self._native.variables(i) for i in range(self.num_envs)]
        return np.array(rows)[:, : _TASKS[self._task].variables]

    def render(self) -> tuple[Any, ...] | None:
        """Gymnasium's picture of each environment, uint8 [H, W, 3]. In mode "human" it shows the first environment in a
        window, as `reset` and `step` do, and returns None."""
        if self.render_mode is None:
            return None
        if self._drawn is None:
            from fastrl.envs.classic import IDS

            [name] = (each for each in IDS if each.partition("-")[0] == self._task)
            self._drawn = gymnasium.make(name, render_mode=self.render_mode).unwrapped
            self._drawn.reset()
        drawn: Any = self._drawn
        pictures = []
        for variables in self.variables()[: 1 if self.render_mode == "human" else None]:
            drawn.state = variables
            pictures.append(drawn.render())
        return None if self.render_mode == "human" else tuple(pictures)

    def close_extras(self, **kwargs: Any) -> None:
        super().close_extras(**kwargs)
        if self._drawn is not None:
            self._drawn.close()


class ClassicEnv(SingleEnv):
    """One environment of a task of classic control. Options as of `ClassicVectorEnv`."""

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 30}  # noqa: RUF012
    vector_class = ClassicVectorEnv
    vector: ClassicVectorEnv
