"""Plans of collection with random actions or a network of random weights, for benchmarks."""

import functools
import math
from contextlib import closing
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from fastrl.collectors.protocol import Plan
from fastrl.envs.rows import obs_rows_of
from fastrl.envs.spec import EnvSpec
from fastrl.networks.compiled_actor import ActorSpec, MlpActor
from random_actor import RandomActor


def make_plan(
    env: EnvSpec,
    num_envs: int,
    num_steps: int,
    hidden: tuple[int, ...] | None = None,
    activation: str = "tanh",
    **options: Any,
) -> Plan:
    """A plan for collectors.

    Args:
        hidden: layers of a network that chooses the actions; None: random actions.
        options: further arguments of the plan.

    Raises:
        Whatever the environment or the actor raises.
    """
    with closing(env.as_rows().make()) as made:
        obs_rows, action_space = obs_rows_of(made), made.action_space
    make_actor: ActorSpec = functools.partial(RandomActor, action_space)
    if hidden is not None:
        if isinstance(action_space, Discrete):
            kind, outputs = "discrete", int(action_space.n)
        else:
            kind, outputs = "gaussian", math.prod(action_space.shape or ())
        architecture = {
            "kind": kind,
            "obs_dim": obs_rows.size,
            "outputs": outputs,
            "hidden": list(hidden),
            "activation": activation,
        }
        make_actor = functools.partial(MlpActor, architecture)
    make_actor()
    return Plan(env, make_actor, obs_rows.space, action_space, num_envs, num_steps, **options)


def random_weights(plan: Plan) -> NDArray[np.float32]:
    """Random weights of the plan's actor, float32 [number of weights]; none for random actions."""
    size = plan.make_actor().weights_nbytes // 4
    return np.random.default_rng(0).normal(0, 0.05, size).astype(np.float32)
