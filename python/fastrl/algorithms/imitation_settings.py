"""Settings of algorithms that learn to act as recorded demonstrations do (behaviour cloning)."""

from typing import Annotated, Literal

from pydantic import Field

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.multi_agent_settings import TeamNetworkConfig
from fastrl.algorithms.network_settings import NetworkConfig
from fastrl.algorithms.protocol import DatasetAlgorithm
from fastrl.networks.kinds import LOG_STD_RANGE
from fastrl.utils.config import Setting, section
from fastrl.utils.tunable import Choices


@section
class ImitationConfig:
    """Hyper-parameters of imitation."""

    epochs: Annotated[
        int, Field(ge=1, description="passes over the demonstrations"), Setting(resumable=True)
    ] = 50
    batch_size: Annotated[
        int,
        Field(
            ge=1,
            description="samples in a gradient step; with a memory whole episodes of at least so many samples",
        ),
        Choices((64, 128, 256, 512, 1024), ordered=True),
    ] = 256
    loss: Annotated[
        Literal["auto", "log_likelihood", "mse", "cross_entropy"],
        Field(
            description="log_likelihood of the expert's actions (negated), also fits the deviation of continuous ones;"
            " mse: mean square error of the means of continuous actions; cross_entropy: of discrete ones, the same as"
            " log_likelihood; auto: cross_entropy or log_likelihood"
        ),
    ] = "auto"
    learning_rate: hp.LearningRate = 1e-3
    final_learning_rate: hp.FinalLearningRate = 0.0
    max_grad_norm: hp.MaxGradNorm = 1.0
    label_smoothing: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="discrete actions: share of the target's probability that all choices have in equal parts",
        ),
    ] = 0.0
    entropy_coef: Annotated[float, Field(ge=0, description="weight of an entropy bonus")] = 0.0
    min_log_std: Annotated[
        float,
        Field(
            ge=LOG_STD_RANGE[0],
            le=LOG_STD_RANGE[1],
            description="continuous actions: lower bound of the deviation's logarithm, so that a clone of an expert"
            " without noise still explores where reinforcement learning continues with it",
        ),
    ] = -3.0
    validation: Annotated[
        float,
        Field(
            ge=0, lt=1, description="share of the episodes that are not learned from, for the validation loss"
        ),
    ] = 0.1
    patience: Annotated[
        int,
        Field(
            ge=0,
            description="stop after so many epochs in succession without a lower validation loss, and go back to the"
            " policy of the lowest; 0: all epochs, and the last policy",
        ),
    ] = 0
    update_backend: hp.UpdateBackend = "auto"


@section
class BCConfig(ImitationConfig, NetworkConfig):
    """Hyper-parameters of behaviour cloning."""

    normalize_obs: Annotated[
        bool,
        Field(
            description="observations are whitened by the mean and deviation of those that are learned from, which are"
            " saved with the policy"
        ),
    ] = False
    squash_actions: Annotated[
        bool,
        Field(
            description="continuous actions are brought within their bounds by tanh instead of being clipped to them"
        ),
    ] = False
    action_masks: Annotated[
        bool,
        Field(
            description="the clone chooses among the actions that the environment allows, as an expert does that obeys"
            " masks; what it learns does not depend on it"
        ),
    ] = False
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"],
        Field(description="number format of the network's arithmetic while it learns (mixed precision)"),
    ] = "fp32"


class BCDeclaration(DatasetAlgorithm):
    name = "bc"
    summary = "behaviour cloning: learns to act as recorded demonstrations do (--demos)"
    config_type = BCConfig
    network_of = "ppo"


@section
class MABCConfig(ImitationConfig, TeamNetworkConfig):
    """Hyper-parameters of behaviour cloning of many agents."""

    batch_size: Annotated[
        int,
        Field(ge=1, description="samples of all agents in a gradient step"),
        Choices((64, 128, 256, 512, 1024), ordered=True),
    ] = 256


class MABCDeclaration(DatasetAlgorithm):
    name = "mabc"
    summary = "behaviour cloning of many agents: learns to act as recorded demonstrations do (--demos)"
    config_type = MABCConfig
    network_of = "ippo"
    many_agents = True
