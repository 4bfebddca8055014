"""Settings of the networks of actor-critic algorithms, and the network that they ask for."""

from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from fastrl.algorithms import hyper_parameters as hp
from fastrl.envs.rows import ObsRows
from fastrl.networks.acting_network import PolicyNet
from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import Activation, ActorCritic
from fastrl.networks.compiled_actor import MAX_OBS_DIM
from fastrl.networks.encoders import check_encoder
from fastrl.networks.own_network import OwnPolicy
from fastrl.networks.parameters import draw_uniform
from fastrl.networks.policy_network import EncodedPolicy
from fastrl.utils.config import section
from fastrl.utils.env_options import parse_options
from fastrl.utils.trust import Reach, imports_network
from fastrl.utils.tunable import Choices, Layers

_SEPARATE = (
    "is for policies and value functions that are separate perceptrons of vectors: set it to 0, or leave out images,"
    " memory, shared_trunk, layer_norm, dropout and a network of your own"
)


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
    ] = (64, 64)
    activation: Annotated[
        Activation, Field(description="after each hidden layer; tanh is much slower on CPUs"), Choices()
    ] = "relu"
    encoder: hp.ImageEncoder = "auto"
    shared_trunk: Annotated[
        bool | None,
        Field(
            description="policy and value function share all layers but their last ones; none: only where observations"
            " have images"
        ),
    ] = None
    layer_norm: Annotated[
        bool, Field(description="layer normalisation before the activation of each hidden layer")
    ] = False
    dropout: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="share of the hidden layers' outputs that are set to zero in gradient steps, never when acting",
        ),
    ] = 0.0
    orthogonal_init: Annotated[
        bool,
        Field(
            description="initial weights are orthogonal, the policy's last ones near zero, biases zero; false: uniform,"
            " as PyTorch's layers are by default (those of a memory stay orthogonal)"
        ),
    ] = True
    memory: hp.Memory = "none"
    memory_size: hp.MemorySize = 64
    initial_log_std: hp.InitialLogStd = 0.0
    network: Annotated[
        str | None,
        Field(
            description="module:Class of a torch.nn.Module of your own, in place of the network that the other settings"
            " describe; it is made as Class(obs_space, action_space, **network_options), and its forward(obs) returns"
            " (outputs, values)"
        ),
        Reach(imports_network),
    ] = None
    network_options: hp.NetworkOptions = ()


def make_network(
    config: NetworkConfig,
    obs_rows: ObsRows,
    actions: Actions,
    *,
    normalize_obs: bool,
    actor_inputs: int = 0,
    generator: torch.Generator,
) -> PolicyNet:
    """The network that settings ask for: two perceptrons, which have a compiled actor, where they are all that is asked
    for.

    Args:
        obs_rows: the observations.
        actions: as the policy draws them.
        normalize_obs: whiten observations that are not images.
        actor_inputs: numbers of an observation that the policy sees, the first ones; 0: all.
        generator: where the initial weights come from.

    Raises:
        ValueError: settings that do not suit the observations, or a network of the user's that does not fit.
    """
    if config.memory != "none" and (config.network is not None or config.shared_trunk is False):
        other = "a network of your own" if config.network is not None else "shared_trunk false"
        raise ValueError(f"memory does not go with {other}: set memory to none, or leave that out")
    if config.network is not None:
        if actor_inputs:
            raise ValueError(f"actor_inputs {_SEPARATE}")
        return OwnPolicy(
            config.network,
            parse_options(config.network_options),
            obs_rows.state(),
            actions.state(),
            normalize_obs=normalize_obs,
            initial_log_std=config.initial_log_std,
            generator=generator,
        )
    if config.network_options:
        raise ValueError(
            "network_options are for a network of your own: set network to its module:Class, too"
        )
    has_images = obs_rows.dtype == np.uint8
    check_encoder(config.encoder, has_images)
    remembers = config.memory != "none"
    shared = has_images or remembers if config.shared_trunk is None else config.shared_trunk
    plain = not (has_images or shared or config.layer_norm or config.dropout or config.encoder == "rows")
    if actor_inputs and not (plain and obs_rows.size <= MAX_OBS_DIM):
        raise ValueError(f"actor_inputs {_SEPARATE}")
    network: PolicyNet
    if plain and obs_rows.size <= MAX_OBS_DIM:
        network = ActorCritic(
            obs_rows.size,
            actions.size,
            config.hidden,
            config.activation,
            normalize_obs=normalize_obs,
            continuous=actions.is_box,
            initial_log_std=config.initial_log_std,
            actor_inputs=actor_inputs or None,
            generator=generator,
        )
    else:
        network = EncodedPolicy(
            obs_rows.state(),
            actions.size,
            encoder=config.encoder,
            hidden=config.hidden,
            activation=config.activation,
            shared_trunk=shared,
            layer_norm=config.layer_norm,
            dropout=config.dropout,
            normalize_obs=normalize_obs,
            memory=config.memory,
            memory_size=config.memory_size,
            continuous=actions.is_box,
            initial_log_std=config.initial_log_std,
            generator=generator,
        )
    if not config.orthogonal_init:
        draw_uniform(network, generator)
    return network
