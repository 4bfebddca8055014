"""Hyper-parameters that all learners of many agents share."""

from typing import Annotated

from pydantic import Field

from fastrl.algorithms.schedules import ScheduleName
from fastrl.networks.distributions import LOG_STD_RANGE
from fastrl.networks.perceptron import Activation, Init
from fastrl.utils.config import Setting, section


@section
class MultiAgentConfig:
    """Hyper-parameters that all learners of many agents share."""

    num_steps: Annotated[
        int, Field(ge=1, description="steps of each environment between updates"), Setting(common=True)
    ] = 64
    minibatch_size: Annotated[
        int, Field(ge=1, description="at most this many agent steps in a gradient step, in equal parts")
    ] = 8192
    gamma: Annotated[
        float, Field(ge=0, le=1, description="discount of future rewards"), Setting(common=True)
    ] = 0.99
    gae_lambda: Annotated[
        float,
        Field(ge=0, le=1, description="advantage estimation: 0 trusts the value function, 1 the rewards"),
    ] = 0.95
    share: Annotated[bool, Field(description="one policy for all agents; false: one for each")] = True
    policies: Annotated[
        tuple[str, ...],
        Field(description="the name of each agent's policy, as many as agents; empty: see share"),
    ] = ()
    agent_ids: Annotated[
        bool, Field(description="policies (and own critics) observe the index of the agent, one-hot")
    ] = False
    hidden: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(description="widths of the hidden layers of actors and critics, each of which has its own"),
        Setting(common=True),
    ] = (128, 64, 32)
    activation: Annotated[
        Activation, Field(description="after each hidden layer; relu is much the fastest on CPUs")
    ] = "relu"
    init: Annotated[Init, Field(description="how hidden weights are drawn at first")] = "orthogonal"
    dropout: Annotated[
        float,
        Field(ge=0, lt=1, description="share of hidden units left out while learning, never when acting"),
    ] = 0.0
    initial_log_std: Annotated[
        float,
        Field(
            ge=LOG_STD_RANGE[0],
            le=LOG_STD_RANGE[1],
            description="Box actions: log of the deviation at first, in units of half an action's range",
        ),
    ] = -0.5
    normalize_obs: Annotated[bool, Field(description="observations are whitened by running statistics")] = (
        False
    )
    normalize_rewards: Annotated[
        bool, Field(description="rewards are divided by the running deviation of the discounted return")
    ] = True
    normalize_advantages: Annotated[
        bool, Field(description="each policy's advantages of a rollout are brought to mean 0, deviation 1")
    ] = True
    learning_rate: Annotated[
        float, Field(ge=0, description="Adam's learning rate at the start"), Setting(common=True)
    ] = 1e-3
    critic_learning_rate: Annotated[
        float | None, Field(ge=0, description="that of critics; none: the same as the policies'")
    ] = None
    lr_schedule: Annotated[
        ScheduleName, Field(description="how learning rates change from update to update")
    ] = "step"
    lr_every: Annotated[int, Field(ge=1, description="step: updates between two steps")] = 100
    lr_factor: Annotated[float, Field(gt=0, description="step: what a step multiplies by")] = 0.95
    lr_final_share: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="linear, cosine, exponential: share of the learning rate that is left at the end;"
            " step: at least",
        ),
    ] = 0.0
    lr_warmup: Annotated[int, Field(ge=0, description="updates in which learning rates rise from 0")] = 0
    entropy_coef: Annotated[float, Field(ge=0, description="weight of the entropy bonus at the start")] = 0.01
    final_entropy_coef: Annotated[
        float, Field(ge=0, description="weight of the entropy bonus at the end, linearly")
    ] = 0.001
    critic_epochs: Annotated[
        int, Field(ge=1, description="passes of critics over the rollout in an update")
    ] = 2
    max_grad_norm: Annotated[
        float, Field(gt=0, description="gradients of each network are scaled down to this norm")
    ] = 1.0
