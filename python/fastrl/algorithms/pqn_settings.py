"""Settings of PQN."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.protocol import Algorithm
from fastrl.networks.kinds import Activation
from fastrl.utils.config import NotBeside, section
from fastrl.utils.tunable import Choices, Layers, Range


@section
class PQNConfig:
    """Hyper-parameters of PQN. Schedules are linear in the environment steps done."""

    num_steps: hp.NumSteps = 32
    num_epochs: Annotated[
        int, Field(ge=1, description="passes over the rollout in an update"), Range(1, 8)
    ] = 2
    minibatch_size: Annotated[
        hp.MinibatchSize,
        Choices((32, 64, 128, 256, 512, 1024), ordered=True),
    ] = 128
    gamma: hp.Gamma = 0.99
    td_lambda: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="returns that are learned from: 0 trusts the values of the next actions, 1 the rewards",
        ),
        Range(0.0, 1.0),
    ] = 0.65
    epsilon: hp.Epsilon = 1.0
    final_epsilon: Annotated[hp.FinalEpsilon, Range(0.001, 0.2, log=True)] = 0.05
    epsilon_steps: Annotated[hp.ScheduleSteps, Range(1_000, 1_000_000, log=True)] = 20_000
    munchausen: Annotated[
        float | None,
        Field(
            ge=0,
            lt=1,
            description="weight of the log-probabilities of actions in returns (Munchausen RL): actions are drawn from"
            " the softmax of values in place of epsilon-greedy, and the next policy stays the nearer to this one the"
            " closer the weight is to 1; reward_scale is one over the temperature; none: off",
        ),
    ] = None
    huber: hp.Huber = None
    learning_rate: hp.LearningRate = 5e-4
    final_learning_rate: hp.FinalLearningRate = 0.0
    adam_eps: hp.AdamEps = 1e-5
    max_grad_norm: hp.MaxGradNorm = 10.0
    hidden: Annotated[
        hp.Widths,
        Field(description="widths of the hidden layers; those follow the features of images"),
        Layers(),
        NotBeside("network"),
    ] = (128, 128)
    activation: Annotated[Activation, Field(description="after each hidden layer"), NotBeside("network")] = (
        "relu"
    )
    layer_norm: Annotated[
        bool,
        Field(
            description="layer normalisation before the activation of each hidden layer; without a target network it"
            " is what keeps values from growing without bounds"
        ),
        NotBeside("network"),
    ] = True
    encoder: hp.ImageEncoder = "auto"
    memory: hp.Memory = "none"
    memory_size: hp.MemorySize = 64
    network: hp.OwnValues = None
    network_options: hp.NetworkOptions = ()
    normalize_obs: hp.NormalizeObs = False
    normalize_returns: hp.NormalizeReturns = False
    reward_scale: hp.RewardScale = 1.0
    reward_clip: hp.RewardClip = None
    action_masks: hp.AllowedActions = False
    update_backend: hp.UpdateBackend = "auto"

    @model_validator(mode="after")
    def _fits_together(self) -> "PQNConfig":
        if self.network is not None and (self.normalize_obs or self.memory != "none"):
            raise ValueError(
                "normalize_obs and memory are for networks of fastrl: leave them out with a network of your own"
            )
        if self.network_options and self.network is None:
            raise ValueError("network_options are for a network of your own: set network, too")
        if self.action_masks and self.num_steps < 2:
            raise ValueError(
                "action_masks need num_steps of at least 2: the last step tells which actions the one before it may"
                " be valued by"
            )
        return self


class PQNDeclaration(Algorithm[Any]):
    name = "pqn"
    summary = "parallel Q-learning: lambda returns of rollouts, without replay and target network"
    config_type = PQNConfig
    action_kinds = frozenset({"discrete"})
