"""Settings of soft actor-critic, CrossQ, TD3 and IQL, and those that algorithms with a policy and critics share."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.protocol import OffPolicyAlgorithm
from fastrl.networks.kinds import EncoderKind, SimbaKind
from fastrl.utils.config import NotBeside, section
from fastrl.utils.curve import MayBeCurve
from fastrl.utils.trust import Reach, imports_network
from fastrl.utils.tunable import Choices, Layers, Range

Tau = Annotated[
    float,
    Field(
        gt=0, le=1, description="how far the target critics move to the learned ones after each gradient step"
    ),
    Range(1e-3, 0.05, log=True),
]
TargetCritics = Annotated[
    int,
    Field(ge=1, description="critics whose least value is the target; of more, a random choice each time"),
]
PolicyEvery = Annotated[
    int, Field(ge=1, description="gradient steps of the critics for each one of the policy")
]
Hidden = Annotated[
    hp.Widths,
    Field(
        description="widths of the hidden layers of policy and critics; those follow the features of images"
    ),
    Layers((64, 128, 256, 512), (1, 2, 3)),
]
PolicyHidden = Annotated[
    hp.Widths | None,
    Field(description="widths of the hidden layers of the policy; none: as of the critics, hidden"),
    Layers((64, 128, 256), (1, 2), search=False),
]
WeightDecay = Annotated[
    float,
    Field(
        ge=0,
        description="AdamW's weight decay: a gradient step takes this share of the parameters off, times the learning"
        " rate",
    ),
    Range(1e-4, 1e-1, log=True, search=False),
]
# That of images, or residual networks of numbers.
Encoder = Annotated[
    EncoderKind | SimbaKind,
    Field(
        description=f"{hp.IMAGE_ENCODERS}. simba: of numbers, which are whitened, residual networks with layer"
        " normalisation in place of perceptrons (Lee et al., 2024);"
        " simba_v2: on hyperspheres, with categorical critics and scaled rewards, for continuous actions (Lee et al.,"
        " 2025). hidden has the width of each block then"
    ),
    Choices(("nature", "impala"), of_images=True),
    NotBeside("network"),
]
LayerNorm = Annotated[
    bool,
    Field(description="layer normalisation before the activation of each hidden layer of the critics"),
    Choices(),
]
OwnFeatures = Annotated[
    str | None,
    Field(
        description="module:Class of a torch.nn.Module of your own, one of the policy and one of the critics, in place"
        " of the encoder of images; it is made as Class(obs_space, action_space, **network_options), and its"
        " forward(obs) returns features, which the hidden layers follow"
    ),
    Reach(imports_network),
]
BatchSize = Annotated[
    int,
    Field(ge=1, description="transitions in a minibatch"),
    Choices((64, 128, 256, 512), ordered=True),
]
ExplorationNoise = Annotated[
    float,
    Field(
        ge=0,
        description="deviation of the noise on continuous actions that are taken, in units of half their range",
    ),
]
ActionMasks = Annotated[
    bool,
    Field(
        description="choose among the discrete actions that the environment allows; it needs action_masks() or"
        " info['action_mask']"
    ),
]


Temperature = Annotated[
    float,
    Field(ge=0, description="weight of the policy's entropy beside rewards; where it is learned, at first"),
]
LearnTemperature = Annotated[
    bool,
    Field(description="change the temperature so that the policy's entropy becomes the target entropy"),
]

_AUTO: EncoderKind | SimbaKind = "auto"


@section
class PolicyAndCriticsConfig:
    """Hyper-parameters of algorithms that learn a policy and critics of its actions, with or without targets."""

    gamma: hp.Gamma = 0.99
    n_step: hp.NStep = 1
    learning_rate: hp.LearningRate = 3e-4
    final_learning_rate: hp.FinalLearningRate = None
    weight_decay: WeightDecay = 0.0
    batch_size: BatchSize = 256
    critics: Annotated[int, Field(ge=1, description="critics that are learned")] = 2
    hidden: Hidden = (256, 256)
    policy_hidden: PolicyHidden = None
    network: OwnFeatures = None
    network_options: hp.NetworkOptions = ()
    precision: hp.Precision = "fp32"

    # Values with algorithms that have no such setting; 0 target critics are all.
    encoder = _AUTO
    memory, memory_size = "none", 64
    action_masks = layer_norm = learn_temperature = False
    policy_every, adam_beta1, target_critics = 1, 0.9, 0
    temperature = tau = 1.0

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.target_critics > self.critics:
            raise ValueError(
                f"target_critics should be at most critics, {self.critics}, got {self.target_critics}"
            )
        if self.network_options and self.network is None:
            raise ValueError("network_options are for a network of your own: set network, too")
        # The logarithm of the temperature is learned.
        if self.learn_temperature and self.temperature == 0:
            raise ValueError("a temperature of 0 cannot be learned: set learn_temperature to false")
        return self


@section
class OffPolicyConfig(PolicyAndCriticsConfig):
    """Hyper-parameters of algorithms with target networks."""

    tau: Tau = 0.005
    layer_norm: LayerNorm = False
    encoder: Encoder = "auto"
    update_backend: hp.UpdateBackend = "auto"

    @model_validator(mode="after")
    def _simba_fits(self) -> Self:
        if self.encoder in ("simba", "simba_v2"):
            self._check_simba()
        return self

    def _check_simba(self) -> None:
        if self.layer_norm:
            raise ValueError(f"the encoder {self.encoder} normalises by itself: set layer_norm to false")
        if self.precision == "bf16":
            raise ValueError(f"the encoder {self.encoder} is computed in fp32: set precision to fp32")
        if self.memory != "none":
            raise ValueError(
                f"the encoder {self.encoder} has no memory: set memory to none, or encoder to auto"
            )
        for name, widths in (("hidden", self.hidden), ("policy_hidden", self.policy_hidden)):
            if widths is not None and len(set(widths)) != 1:
                raise ValueError(
                    f"with the encoder {self.encoder} {name} is the width of each block, the same for all, such as"
                    f" 512,512, got {','.join(map(str, widths)) or 'none'}"
                )


@section
class RecurrentConfig(OffPolicyConfig):
    """Hyper-parameters of those that may have a memory."""

    memory: hp.Memory = "none"
    memory_size: hp.MemorySize = 64
    sequence_length: hp.SequenceLength = 20
    burn_in: hp.SequenceBurnIn = 10


@section
class SACConfig(RecurrentConfig):
    """Hyper-parameters of soft actor-critic."""

    learning_rate: Annotated[
        hp.MaybeScheduled,
        Field(
            description="Adam's learning rate of policy, critics and temperature, at the start; or a schedule, such as"
            " linear:3e-4"
        ),
        MayBeCurve(),
        hp.LearningRateRange,
    ] = 3e-4
    target_critics: TargetCritics = 2
    policy_value: Annotated[
        Literal["min", "mean"],
        Field(description="value that the policy is to increase: the least of all critics, or their mean"),
    ] = "min"
    policy_every: PolicyEvery = 1
    temperature: Temperature = 1.0
    learn_temperature: LearnTemperature = True
    target_entropy: Annotated[
        float | None,
        Field(
            description="nats; none: of continuous actions minus the number of their components, half of it with"
            " encoders simba and simba_v2; of n discrete actions entropy_share * log(n)"
        ),
    ] = None
    entropy_share: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="discrete actions: target entropy as a share of the largest one. Shares near 1, as in"
            " Christodoulou (2019), let the temperature grow without end where the best policy is not random",
        ),
    ] = 0.3
    entropy_backup: Annotated[
        bool, Field(description="the critics' targets count the entropy of later actions, too")
    ] = True
    action_masks: ActionMasks = False


@section
class CrossQConfig(PolicyAndCriticsConfig):
    """Hyper-parameters of CrossQ."""

    learning_rate: hp.LearningRate = 1e-3
    hidden: Annotated[
        hp.Widths,
        Field(
            description="widths of the critics' hidden layers, which follow the features of images; the paper has"
            " (2048, 2048)"
        ),
        Layers((256, 512, 1024, 2048), (1, 2, 3)),
    ] = (512, 512)
    policy_hidden: PolicyHidden = (256, 256)
    encoder: hp.ImageEncoder = "auto"
    policy_every: PolicyEvery = 3
    adam_beta1: Annotated[
        float,
        Field(ge=0, lt=1, description="Adam's beta1, weight of older gradients in their running mean"),
        Range(0.3, 0.9),
    ] = 0.5
    renorm_momentum: Annotated[
        float, Field(gt=0, le=1, description="weight of a batch in the running mean and variance")
    ] = 0.01
    renorm_warmup: Annotated[
        int,
        Field(
            ge=0,
            description="batches of a network that are normalised by their own statistics alone, before those are"
            " corrected by the running ones",
        ),
    ] = 100_000
    temperature: Temperature = 1.0
    learn_temperature: LearnTemperature = True
    target_entropy: Annotated[
        float | None, Field(description="nats; none: minus the number of an action's components")
    ] = None
    policy_value: ClassVar[str] = "min"
    entropy_backup: ClassVar[bool] = True


@section
class TD3Config(RecurrentConfig):
    """Hyper-parameters of TD3."""

    target_critics: TargetCritics = 2
    policy_every: PolicyEvery = 2
    exploration_noise: Annotated[ExplorationNoise, Range(0.03, 0.5, log=True)] = 0.1
    target_noise: Annotated[
        float, Field(ge=0, description="deviation of the noise on the actions of the critics' targets")
    ] = 0.2
    target_noise_clip: Annotated[float, Field(ge=0, description="largest size of that noise")] = 0.5


class OffPolicyDeclaration(OffPolicyAlgorithm):
    replay_defaults: ClassVar[Mapping[str, Any]] = {"train_freq": 1, "updates_per_step": 1.0}


class SACDeclaration(OffPolicyDeclaration):
    name = "sac"
    summary = "soft actor-critic, for continuous actions between finite bounds and for discrete ones"
    config_type: ClassVar[type[Any]] = SACConfig
    action_kinds = frozenset({"box", "discrete"})


class CrossQDeclaration(OffPolicyDeclaration):
    name = "crossq"
    summary = "CrossQ, SAC with batch renormalisation in place of target networks, for continuous actions"
    config_type = CrossQConfig
    action_kinds = frozenset({"box"})


class TD3Declaration(OffPolicyDeclaration):
    name = "td3"
    summary = "TD3, a deterministic policy for continuous actions between finite bounds"
    config_type = TD3Config
    action_kinds = frozenset({"box"})


@section
class IQLConfig(OffPolicyConfig):
    """Hyper-parameters of implicit Q-learning."""

    expectile: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description="expectile of the critics' values over the recorded actions, which the value function learns:"
            " 0.5 is their mean, near 1 the best of them",
        ),
        Range(0.6, 0.95),
    ] = 0.7
    beta: Annotated[
        float,
        Field(
            ge=0,
            description="inverse temperature: the policy imitates an action with weight exp(beta * advantage); 0 is"
            " behaviour cloning",
        ),
        Range(0.5, 10.0, log=True),
    ] = 3.0
    max_weight: Annotated[float, Field(gt=0, description="largest weight of an action")] = 100.0
    exploration_noise: ExplorationNoise = 0.1
    action_masks: ActionMasks = False
    encoder: hp.ImageEncoder = "auto"


class IQLDeclaration(OffPolicyDeclaration):
    name = "iql"
    summary = "implicit Q-learning, from demonstrations (--demos), then from new transitions as well"
    config_type = IQLConfig
    action_kinds = frozenset({"box", "discrete"})
