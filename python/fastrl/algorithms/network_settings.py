"""Settings of networks, and those that actor-critic algorithms share."""

import math
from typing import Annotated, Literal

from pydantic import Field

from fastrl.algorithms import hyper_parameters as hp
from fastrl.networks.kinds import Activation
from fastrl.utils.config import NotBeside, section
from fastrl.utils.trust import Reach, imports_network
from fastrl.utils.tunable import Choices, Layers, Range

_FULL: Literal["fp32", "bf16", "fp16"] = "fp32"


@section
class NetworkConfig:
    """Settings of a policy's and a value function's network."""

    hidden: Annotated[
        hp.Widths,
        Field(
            description="widths of the hidden layers of policy and value function; those follow the features of images"
            " where observations have some"
        ),
        Layers(),
        NotBeside("network"),
    ] = (64, 64)
    activation: Annotated[
        Activation,
        Field(description="after each hidden layer; tanh is much slower on CPUs"),
        Choices(),
        NotBeside("network"),
    ] = "relu"
    encoder: hp.PolicyEncoder = "auto"
    shared_trunk: Annotated[
        bool | None,
        Field(
            description="policy and value function share all layers but their last ones; none: only where observations"
            " have images"
        ),
        NotBeside("network"),
    ] = None
    layer_norm: Annotated[
        bool,
        Field(description="layer normalisation before the activation of each hidden layer"),
        NotBeside("network"),
    ] = False
    dropout: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="share of the hidden layers' outputs that are set to zero in gradient steps, never when acting",
        ),
        NotBeside("network"),
    ] = 0.0
    orthogonal_init: Annotated[
        bool,
        Field(
            description="initial weights are orthogonal, the policy's last ones near zero, biases zero; false: uniform,"
            " as PyTorch's layers are by default (those of a memory stay orthogonal)"
        ),
        NotBeside("network"),
    ] = True
    memory: hp.Memory = "none"
    memory_size: hp.MemorySize = 64
    initial_log_std: hp.InitialLogStd = 0.0
    network: Annotated[
        str | None, Field(description=f"{hp.OWN_NETWORK} (outputs, values)"), Reach(imports_network)
    ] = None
    network_options: hp.NetworkOptions = ()

    # Values with algorithms that have no such setting.
    normalize_obs = squash_actions = compile = False
    max_grad_norm = math.inf
    precision = _FULL
    actor_inputs = 0


@section
class ActorCriticConfig(NetworkConfig):
    """Hyper-parameters of actor-critic algorithms. Schedules are linear in the environment steps done."""

    num_steps: hp.NumSteps = 100
    gamma: hp.Gamma = 0.99
    value_coef: Annotated[float, Field(ge=0, description="weight of the value loss")] = 0.5
    learning_rate: hp.LearningRate = 1e-3
    final_learning_rate: hp.FinalLearningRate = 0.0
    entropy_coef: hp.EntropyCoef = 0.01
    final_entropy_coef: hp.FinalEntropyCoef = 0.001
    max_grad_norm: Annotated[
        float, Field(gt=0, description="gradients are scaled down to this norm"), Range(0.3, 5.0, log=True)
    ] = 0.5
    normalize_obs: hp.NormalizeObs = False
    normalize_returns: hp.NormalizeReturns = True
    action_masks: hp.ActionMasks = False
    reward_scale: hp.RewardScale = 1.0
    reward_clip: hp.RewardClip = None
    squash_actions: Annotated[
        bool,
        Field(
            description="continuous actions are brought within their bounds by tanh instead of being clipped to them"
        ),
    ] = False

    # Values with algorithms that have no such setting.
    max_staleness = burn_in = 0
