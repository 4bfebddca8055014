"""Cooperative driving: up to 15 agents (or more) among background traffic, on a highway or where a ramp ends.

The physics and the five meta-actions are those of highway-env (kinematic bicycles; background vehicles keep their
distance by IDM and change lanes by MOBIL). The task is new: each agent has its own observation, reward and end, and
its reward is mixed with the team's.

**Observation**, float32 [D], all numbers in [-1, 1]; D = 61 + lanes (one lane more at the merge, the ramp):

- the agent's vehicle: offset from the middle of its lane (in half lanes), heading error (in quarter turns), speed and
  target speed (in 40 m/s), one number a lane that is 1 for its own, distance to the end of the ramp (in 300 m,
  negative past it; 1 on the highway, which has no ramp);
- the 8 nearest vehicles within 150 m, the nearest first (zeros if there are fewer): present (1), dx (in 150 m), dy (in
  12 m), dvx and dvy (in 40 m/s) relative to the agent, cosine and sine of the heading.

**Actions**: `Discrete(5)`, 0 lane left, 1 idle, 2 lane right, 3 faster, 4 slower (target speeds of 10, 15, 20, 25 and
30 m/s), or with `action_type="continuous"` `Box(-1, 1, (2,))`: acceleration (in 5 m/s^2) and steering (in 0.1 rad,
positive to the right).

**Reward** of an agent in a step: (1 - cooperation) x its own + cooperation x the mean over all agents that acted. Its
own reward is `collision_reward` if it crashed in this step, plus, on the road, `speed_reward` x the position of its
forward speed in `reward_speed_range` (clipped to 0 to 1) and `lane_reward` x its lane (0 the leftmost of the main road,
1 the rightmost; 0 on the ramp), plus `arrival_reward` when it arrives.

**Ends**: an agent terminates when it crashes, or drives off the road by more than a lane's width, which counts as a
crash. At the merge it also terminates 150 m past the ramp's end: it has arrived, and its vehicle is removed. When the
time is up, the agents that still drive are truncated; that counts as success on the highway, not at the merge. Every
crashed vehicle stays on the road for 3 seconds as an obstacle, then it is removed.

**Start**: at the merge, a third of the agents (rounded up) begin on the ramp at 20 m/s, the foremost about 200 m before
its end. All other vehicles stand in random order on the lanes of the main road, 50 m apart in the mean at density 1;
`density` changes the number of background vehicles on the same stretch. Agents on the main road begin at 25 m/s,
background vehicles at their target speed of 21 to 24 m/s.

**Links** (`comms`, `docs/environments/links.md`): with "perfect", as above, agents see all others as they are. With
"range" or "37885" every agent broadcasts its state at the end of each step, at resets too, and knows of another agent
the last state that it received. Then

- each of the 8 vehicles has an eighth number, the age of that state in `max_age` (0: of this moment, and vehicles
  without a radio); the nearest are those whose last known places are the nearest;
- where agents choose resources, the observation ends with the power that was sensed in each, in 40 dB from -80 dBm (1
  where the agent itself was sending in that slot);
- a discrete action is manoeuvre + 5 x (resource + resources x power), as far as there is a choice; continuous actions
  have a number more for each choice, whose range is cut into equal parts;
- a reward has two more terms: `age_reward` x the mean age of information, in s, that receivers within the range have of
  the agent, and `delivery_reward` x the share of them that its message reached;
- `info["comms"]` and the statistics of episodes have the delivery ratio, the age of information (s; a period for a
  state that has just arrived), the SINR (dB) and the channel busy ratio; `links` has all pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from fastrl._native import _rust
from fastrl.envs.traffic.linked import LinkedVectorEnv, build_with, widened
from fastrl.envs.traffic.links import Comms, link_options
from fastrl.envs.vector import as_autoreset_mode
from fastrl.envs.viewer import View

if TYPE_CHECKING:
    from fastrl.envs.traffic.driving_task import DrivingTask

ACTIONS = ("LANE_LEFT", "IDLE", "LANE_RIGHT", "FASTER", "SLOWER")
"""The meta-actions, by index."""
VIEW = View(screen_width=1000, screen_height=160)


class CoopOptions(TypedDict, total=False):
    """Options of `CoopVectorEnv`, whose defaults are those of the compiled side."""

    max_agents: int
    num_agents: int | None
    density: float
    lanes: int | None
    background: int | None
    action_type: Literal["meta", "continuous"]
    simulation_frequency: int
    policy_frequency: int | None
    duration: float | None
    cooperation: float
    collision_reward: float
    speed_reward: float
    lane_reward: float | None
    arrival_reward: float
    age_reward: float
    delivery_reward: float
    reward_speed_range: tuple[float, float]


class CoopVectorEnv(LinkedVectorEnv):
    """K environments of cooperative driving; the module documents observations, actions, rewards and ends.

    Args:
        num_envs: K.
        road: "highway" or "merge".
        max_agents: A, the most agents that an episode can have, 1 to 64; 15 by default.
        num_agents: agents of the first episodes, 1 to `max_agents`; None: `max_agents`. `set_difficulty` changes it.
        density: of the background traffic in the first episodes, 0 to 4, by default 1. `set_difficulty` changes it.
        lanes: of the main road, 1 to 16; None: 4 on the highway, 2 at the merge.
        background: background vehicles at density 1, 0 to 200; None: 20 on the highway, 10 at the merge.
        action_type: "meta" (`Discrete(5)`), the default, or "continuous" (`Box(2)`).
        simulation_frequency: frames of the physics a second, by default 5.
        policy_frequency: steps a second, a divisor of `simulation_frequency`; None: 1, and every frame where actions
            are continuous.
        duration: seconds of an episode; None: 40 on the highway, 60 at the merge.
        cooperation: share of the team's mean in an agent's reward, 0 to 1, by default 0.5.
        collision_reward, speed_reward, lane_reward, arrival_reward: weights of an agent's own reward, by default -1,
            0.4, 0.1 on the highway and 0.05 at the merge (None), and 1.
        age_reward, delivery_reward: weights of the links in an agent's own reward; 0, the default, with
            `comms="perfect"`.
        reward_speed_range: forward speeds for 0 and for the full `speed_reward`, m/s, by default 10 and 30.
        comms: how agents know of one another: "perfect", "range" (by distance) or "37885" (by 3GPP TR 37.885).
        comms_options: fields of `fastrl.envs.traffic.links.LinkOptions`.
        task: rewards, ends and further observations of users, a `fastrl.envs.DrivingTask` or its import path.
        autoreset_mode: Gymnasium's enum or the name of a mode.
        num_threads: threads that step the environments, 0 for one a core.

    Raises:
        ValueError: an option out of range.
        TypeError: an option of another type.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        road: Literal["highway", "merge"] = "highway",
        comms: Comms = "perfect",
        comms_options: Mapping[str, Any] | None = None,
        task: DrivingTask | str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        num_threads: int = 0,
        **options: Unpack[CoopOptions],
    ) -> None:
        links = link_options(comms, comms_options)

        def build(mode: str) -> _rust.CoopVec:
            return _rust.CoopVec(
                num_envs, road=road, comms=links, autoreset_mode=mode, num_threads=num_threads, **options
            )

        native, terms = build_with(task, build, as_autoreset_mode(autoreset_mode).name.lower())
        actions: Box | Discrete = Discrete(native.num_actions)
        if options.get("action_type") == "continuous":
            actions = Box(-1.0, 1.0, (native.action_len,), np.float32)
        super().__init__(
            lambda mode: native,
            widened(Box(-1.0, 1.0, (native.obs_dim - terms,), np.float32), terms),
            actions,
            autoreset_mode=autoreset_mode,
            name=f"fastrl/coop-{road}-v0",
            view=VIEW,
            fps=float(native.policy_frequency),
        )
