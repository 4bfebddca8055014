"""Flow's ring road, compiled: one or several agents dissolve the stop-and-go wave of human drivers.

The benchmark is that of C. Wu et al., "Flow: Architecture and benchmarking for reinforcement learning in traffic
control" (2017), `WaveAttenuationPOEnv`: 22 vehicles of 5 m on a ring of 220 to 270 m. The humans drive by the
Intelligent Driver Model as SUMO 1.28 computes it, with noise; their wave has formed before the agents take control.

An agent observes [own speed / 15, (leader's speed - own) / 15, distance to the leader, front to front / longest ring]
(speeds in m/s) and acts by an acceleration, m/s^2. All agents get the same reward, `4 mean(v) / 20 - 4 mean(|action|)`
over all vehicles and all agents; 0 with a collision, which terminates. (Flow's multi-agent ring observes the gap,
bumper to bumper, instead of the distance; here the observation is the same for one agent and for many.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from numpy.typing import ArrayLike, NDArray

from fastrl._native import _rust
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.single import SingleEnv
from fastrl.envs.vector import NativeVectorEnv
from fastrl.envs.viewer import RENDER_MODES, View
from fastrl.utils.arguments import as_integer, as_number, check_types

Drive = Literal["agents", "humans", "follower_stopper", "pi_saturation"]

VIEW = View(screen_width=600, screen_height=600)


@dataclass(frozen=True, kw_only=True)
class RingOptions:
    """The options of the ring road. The defaults are Flow's.

    Attributes:
        num_vehicles: on the ring, agents included.
        num_agents: drivers of evenly spaced vehicles; 1 in Gymnasium's environments.
        ring_length: circumference, m, or the range from which each episode's is drawn uniformly (Flow draws integers).
        dt: step of the simulation, s.
        ballistic: integrate positions as SUMO does with `--step-method.ballistic`.
        sims_per_step: steps of the simulation in a step of the environment; the action is held for all of them.
        warmup_steps: steps before an episode's first observation, in which agents drive like humans. `reset` computes
            them.
        horizon: steps of the environment until an episode is truncated.
        noise: standard deviation of the noise on human accelerations, times the root of `dt`, m/s^2.
        bunching: length of the gap that is left when the vehicles, at rest, are spread over the ring, m. With 0 they
            start evenly spaced, and the wave forms in minutes rather than at once.
        max_accel: upper bound of the action, m/s^2.
        max_decel: minus the lower bound, positive.
        distance_scale: divisor of observed distances, m; None for the longest of `ring_length`. To evaluate a policy
            on one ring of the range that it was trained on, give the longest of that range.
        memory: time constant, s, of an exponential mean of an agent's speed, which is a fourth number of its
            observation (divided by 15); 0 for Flow's three numbers. Those cannot tell a slow moment of the wave from
            a crowded ring; the mean can.
        safe_speed: bound an agent's speed by SUMO's safe speed, as Flow does. Without it agents can hit their leaders.
        speed_weight: weight of the speed in the reward.
        action_weight: weight of the actions in the reward.
        drive: driver of the agents' vehicles after the warm-up: "agents", or, regardless of the actions, "humans" or
            one of the controllers of Stern et al. (2018), "follower_stopper" and "pi_saturation".
        desired_speed: of "follower_stopper", m/s; None for the equilibrium speed of each episode's ring.

    Raises:
        TypeError, ValueError: an option out of its range; the message says what was expected.
    """

    num_vehicles: int = 22
    num_agents: int = 1
    ring_length: float | tuple[float, float] = (220.0, 270.0)
    dt: float = 0.1
    ballistic: bool = False
    sims_per_step: int = 1
    warmup_steps: int = 750
    horizon: int = 3000
    noise: float = 0.2
    bunching: float = 50.0
    max_accel: float = 1.0
    max_decel: float = 1.0
    distance_scale: float | None = None
    memory: float = 0.0
    safe_speed: bool = True
    speed_weight: float = 4.0
    action_weight: float = 4.0
    drive: Drive = "agents"
    desired_speed: float | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if not isinstance(self.drive, str):
            raise TypeError(f"drive: expected a name, got {self.drive!r}")
        # The compiled side checks the rest; `fps` divides by these two before it is built.
        for name in ("dt", "sims_per_step"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected a positive number, got {getattr(self, name)}")
        self.length_range()

    def length_range(self) -> tuple[float, float]:
        """The shortest and the longest ring, m."""
        length = self.ring_length
        if isinstance(length, tuple | list):
            if len(length) != 2:
                raise ValueError(f"ring_length: expected a number or two, got {length!r}")
            return as_number("ring_length", length[0]), as_number("ring_length", length[1])
        return as_number("ring_length", length), as_number("ring_length", length)

    @property
    def fps(self) -> float:
        """Steps of the environment in a second of simulated time."""
        return 1.0 / (self.dt * self.sims_per_step)

    def native(self, num_envs: int, num_threads: int) -> Callable[[str], _rust.RingVec]:
        """A function that builds the compiled rings for an autoreset mode."""
        num_envs, num_threads = as_integer("num_envs", num_envs, 0), as_integer("num_threads", num_threads, 0)
        options: dict[str, Any] = asdict(self) | {"ring_length": self.length_range()}
        return lambda mode: _rust.RingVec(num_envs, num_threads=num_threads, autoreset_mode=mode, **options)

    def spaces(self) -> tuple[Box, Box]:
        """The spaces of one agent's observations and actions."""
        return (
            Box(-np.inf, np.inf, (4 if self.memory else 3,), np.float32),
            Box(-self.max_decel, self.max_accel, (1,), np.float32),
        )


class RingState(NamedTuple):
    """Positions and speeds of the n vehicles of N rings, in their order along the road: each follows the next one, the
    last follows the first."""

    positions: NDArray[np.float64]
    """Fronts, m from the start of the ring, [N, n]."""
    speeds: NDArray[np.float64]
    """m/s, [N, n]."""
    accelerations: NDArray[np.float64]
    """Accelerations of the last simulation step, m/s^2, [N, n]."""
    ring_lengths: NDArray[np.float64]
    """Circumferences, m, [N]."""


class _Rings:
    """Methods that the environments of one and of several agents share."""

    _native: Any
    options: RingOptions

    @property
    def agent_vehicles(self) -> tuple[int, ...]:
        """The index of each agent's vehicle."""
        return tuple(self._native.agent_vehicles)

    def vehicles(self) -> RingState:
        """Positions and speeds of the vehicles."""
        n = self._native.num_envs
        shape = (n, self._native.num_vehicles)
        state = RingState(np.empty(shape), np.empty(shape), np.empty(shape), np.empty(n))
        self._native.vehicles(*state)
        return state

    def place(self, index: int, ring_length: float, positions: ArrayLike, speeds: ArrayLike) -> None:
        """Moves the vehicles of ring `index` within its episode: `positions` [n] in m, ascending, the last less than a
        lap after the first; `speeds` [n] in m/s, from 0. ValueError if two vehicles overlap."""
        x, v = (np.ascontiguousarray(values, np.float64) for values in (positions, speeds))
        self._native.set_vehicles(index, float(ring_length), x, v)


class RingVectorEnv(_Rings, NativeVectorEnv):
    """N rings with one agent each, stepped natively.

    Args:
        num_envs: number of rings, N.
        num_threads: threads that step the rings; 0 for one a core.
        autoreset_mode: see `NativeVectorEnv`.
        max_episode_steps: Gymnasium's name for `horizon`; it takes precedence.
        options: see `RingOptions`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        num_threads: int = 0,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        if max_episode_steps is not None:
            options["horizon"] = max_episode_steps
        self.options = RingOptions(**options)
        if self.options.num_agents != 1:
            raise ValueError(
                f"num_agents: Gymnasium's environments have 1 agent, got {self.options.num_agents}: "
                "use fastrl.envs.make_multi('fastrl/ring-v0', ...)"
            )
        observation_space, action_space = self.options.spaces()
        super().__init__(
            self.options.native(num_envs, num_threads),
            observation_space,
            action_space,
            autoreset_mode=autoreset_mode,
            render_mode=render_mode,
            render_modes=(),
            view=VIEW,
            fps=self.options.fps,
        )


class RingEnv(SingleEnv):
    """One ring with one agent. Options as in `RingOptions`."""

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 10}  # noqa: RUF012
    vector_class = RingVectorEnv
    vector: RingVectorEnv

    @property
    def options(self) -> RingOptions:
        return self.vector.options

    def vehicles(self) -> RingState:
        """Positions and speeds of the vehicles, without the leading axis."""
        return RingState(*(array[0] for array in self.vector.vehicles()))


class RingMultiAgentVectorEnv(_Rings, MultiAgentVectorEnv):
    """K rings with A agents each.

    Args:
        num_envs: number of rings, K.
        num_threads: threads that step the rings; 0 for one a core.
        autoreset_mode: see `MultiAgentVectorEnv`.
        options: see `RingOptions`.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        num_threads: int = 0,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        **options: Any,
    ) -> None:
        self.options = RingOptions(**options)
        super().__init__(
            self.options.native(num_envs, num_threads),
            *self.options.spaces(),
            autoreset_mode=autoreset_mode,
            name="fastrl/ring-v0",
            view=VIEW,
            fps=self.options.fps,
        )


def equilibrium_speed(ring_length: float, num_vehicles: int = 22) -> float:
    """The speed at which `num_vehicles` humans on a ring of `ring_length` m, evenly spaced, neither brake nor
    accelerate, m/s: the speed that a perfect controller reaches."""
    return _rust.ring_equilibrium_speed(
        as_integer("num_vehicles", num_vehicles, 0), as_number("ring_length", ring_length)
    )
