"""Settings of deep Q-learning."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.protocol import OffPolicyAlgorithm
from fastrl.networks.kinds import NATURE, parse_conv
from fastrl.utils.config import EndOf, NotBeside, section
from fastrl.utils.curve import MayBeCurve
from fastrl.utils.tunable import Choices, Layers, Range


def _conv(layer: str) -> str:
    parse_conv(layer)
    return layer


@section
class DQNConfig:
    """Hyper-parameters of DQN. Schedules are linear in the environment steps done."""

    gamma: hp.Gamma = 0.99
    n_step: hp.NStep = 3
    double: Annotated[
        bool, Field(description="the online network chooses the action that the target network values")
    ] = True
    dueling: Annotated[
        bool,
        Field(description="the network estimates the value and the actions' advantages apart"),
        Choices(),
        NotBeside("network"),
    ] = True
    noisy: Annotated[
        bool, Field(description="explore by learned noise in the last two layers; epsilon is 0 then")
    ] = False
    noisy_sigma: Annotated[float, Field(gt=0, description="initial deviation of that noise")] = 0.5
    epsilon: hp.Epsilon = 1.0
    final_epsilon: Annotated[hp.FinalEpsilon, Range(0.005, 0.1, log=True)] = 0.01
    epsilon_steps: Annotated[hp.ScheduleSteps, Range(1_000, 100_000, log=True)] = 10_000
    epsilon_spread: Annotated[
        float,
        Field(
            ge=0,
            description="exploration differs between episodes: the share of random actions is to the power of 1 + this"
            " times a number from 0 to 1 that is drawn for each episode; Ape-X has 7",
        ),
    ] = 0.0
    quantiles: Annotated[
        int,
        Field(
            ge=0,
            le=1_000,
            description="quantiles of the return that the network estimates for each action, whose mean is its value"
            " (QR-DQN); 0: the mean alone",
        ),
    ] = 0
    prioritized: Annotated[bool, Field(description="sample by the size of the last error"), Choices()] = False
    alpha: Annotated[float, Field(ge=0, description="prioritized: exponent of the error; 0 is uniform")] = 0.6
    beta: Annotated[
        hp.MaybeScheduled,
        Field(
            description="prioritized: correction by importance sampling, at the start; or a schedule over beta_steps"
        ),
        MayBeCurve(le=1),
    ] = 0.4
    final_beta: Annotated[
        float, Field(ge=0, le=1, description="that correction from beta_steps on"), EndOf("beta", "stays")
    ] = 1.0
    beta_steps: hp.ScheduleSteps = 1_000_000
    target_every: Annotated[
        int, Field(ge=1, description="gradient steps between moves of the target"), Range(50, 5_000, log=True)
    ] = 500
    target_tau: Annotated[
        float,
        Field(gt=0, le=1, description="how far the target network moves to the online one; 1: all the way"),
    ] = 1.0
    huber: hp.Huber = 1.0
    margin: Annotated[
        float,
        Field(
            ge=0,
            description="demonstrations: by how much the value of their action should exceed that of all others",
        ),
    ] = 0.8
    margin_coef: Annotated[
        hp.MaybeScheduled,
        Field(
            description="demonstrations: weight of the loss that sees to that margin; 0: none; or a schedule"
        ),
        MayBeCurve(),
    ] = 0.0
    final_margin_coef: Annotated[
        float | None,
        Field(
            ge=0,
            description="weight of that loss at the end of the run, linear in between; none: as at the start. With 0,"
            " bad demonstrations are overcome",
        ),
        EndOf("margin_coef"),
    ] = None
    learning_rate: hp.LearningRate = 5e-4
    final_learning_rate: hp.FinalLearningRate = None
    adam_eps: hp.AdamEps = 1e-5
    max_grad_norm: hp.MaxGradNorm = 10.0
    batch_size: Annotated[
        int,
        Field(ge=1, description="transitions in a batch"),
        Choices((32, 64, 128, 256), ordered=True),
    ] = 128
    accumulate: Annotated[
        int, Field(ge=1, description="batches whose gradients are averaged into one gradient step")
    ] = 1
    conv: Annotated[
        tuple[Annotated[str, AfterValidator(_conv)], ...],
        Field(
            description="convolutions where the observation is one image with its channels first, each"
            " CHANNELSxKERNEL/STRIDE; where it is not, or with an encoder, the encoder has its own"
        ),
        NotBeside("network"),
    ] = NATURE
    encoder: hp.ImageEncoder = "auto"
    network: hp.OwnValues = None
    network_options: hp.NetworkOptions = ()
    hidden: Annotated[
        hp.Widths,
        Field(description="widths of the hidden layers; dueling networks have the last one twice"),
        Layers((64, 128, 256, 512), (1, 2, 3)),
        NotBeside("network"),
    ] = (512,)
    memory: hp.Memory = "none"
    memory_size: hp.MemorySize = 64
    sequence_length: hp.SequenceLength = 20
    burn_in: hp.SequenceBurnIn = 10
    action_masks: hp.AllowedActions = False
    batch_norm: Annotated[
        bool, Field(description="BatchNorm after each layer but the last"), NotBeside("network")
    ] = False
    precision: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        Field(
            description="number format of the network's arithmetic when learning; auto: bf16 on CUDA, fp32 on CPUs"
        ),
    ] = "auto"
    update_backend: hp.UpdateBackend = "auto"
    compile: Annotated[bool, Field(description="torch.compile the networks for learning")] = False
    channels_last: Annotated[
        Literal["auto", "on", "off"],
        Field(description="layout of images when learning; auto: on CUDA in half precision"),
    ] = "auto"

    @model_validator(mode="after")
    def _fits_together(self) -> "DQNConfig":
        if self.batch_norm and self.batch_size < 2:
            raise ValueError("batch_norm needs a batch_size of at least 2: it normalises by the batch")
        if self.noisy and self.network is not None:
            raise ValueError("noisy is for networks of fastrl: set it to false with a network of your own")
        if self.quantiles and self.network is not None:
            raise ValueError("quantiles are for networks of fastrl: set them to 0 with a network of your own")
        if self.quantiles and self.huber is None:
            raise ValueError("quantiles need huber: by squared errors they would be expectiles")
        if self.network_options and self.network is None:
            raise ValueError("network_options are for a network of your own: set network, too")
        if self.memory != "none":
            for name in ("network", "batch_norm", "prioritized", "compile"):
                if getattr(self, name):
                    off = "none" if name == "network" else "false"
                    raise ValueError(
                        f"memory does not go with {name}: set {name} to {off}, or memory to none"
                    )
        return self


class DQNDeclaration(OffPolicyAlgorithm):
    name = "dqn"
    summary = "deep Q-learning, with double, dueling, n-step, prioritized, quantiles and noisy as options"
    config_type = DQNConfig
    action_kinds = frozenset({"discrete"})
