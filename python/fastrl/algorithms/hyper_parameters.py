"""Types of hyper-parameters that several algorithms have: their ranges, descriptions and options."""

import functools
from typing import Annotated, Literal

from pydantic import Field

from fastrl.networks.kinds import LOG_STD_RANGE, EncoderKind, MemoryKind, PolicyEncoderKind
from fastrl.utils.config import EndOf, NotBeside, Setting
from fastrl.utils.curve import MayBeCurve
from fastrl.utils.env_options import KeyValues
from fastrl.utils.trust import Reach, imports_network, passes_import_paths
from fastrl.utils.tunable import Choices, Layers, Range

NumSteps = Annotated[
    int, Field(ge=1, description="steps of each environment between updates"), Range(16, 512, log=True)
]
Gamma = Annotated[
    float,
    Field(ge=0, le=1, description="discount of future rewards"),
    Range(0.9, 0.9995, log=True, from_one=True),
]
NStep = Annotated[int, Field(ge=1, description="rewards that are summed before the bootstrap"), Range(1, 5)]
GaeLambda = Annotated[
    float,
    Field(ge=0, le=1, description="advantage estimation: 0 trusts the value function, 1 the rewards"),
    Range(0.8, 1.0),
]
ClipRange = Annotated[
    float,
    Field(gt=0, description="how far the probability ratio may move before the gradient stops"),
    Range(0.1, 0.4),
]
LearningRateRange = Range(1e-5, 1e-2, log=True)
# A number, or the text of a curve.
MaybeScheduled = float | str
LearningRate = Annotated[
    MaybeScheduled,
    Field(
        description="Adam's learning rate at the start; given without an end, it is constant; or a schedule, such as"
        " cosine:3e-4:1e-5"
    ),
    MayBeCurve(),
    LearningRateRange,
]
FinalLearningRate = Annotated[
    float | None,
    Field(ge=0, description="Adam's learning rate at the end; none: as at the start"),
    EndOf("learning_rate"),
]
EntropyCoef = Annotated[
    MaybeScheduled,
    Field(
        description="weight of the entropy bonus at the start; given without an end, it is constant; or a schedule"
    ),
    MayBeCurve(),
    Range(1e-4, 0.1, log=True),
]
FinalEntropyCoef = Annotated[
    float | None,
    Field(ge=0, description="weight of the entropy bonus at the end; none: as at the start"),
    EndOf("entropy_coef"),
]
# With the options of each algorithm.
MinibatchSize = Annotated[
    int,
    Field(
        ge=1,
        description="at most this many samples in a gradient step; minibatches are of equal size, and with a memory"
        " of whole fragments of some environments",
    ),
]
Epsilon = Annotated[
    MaybeScheduled,
    Field(description="share of random actions at the start; or a schedule over epsilon_steps"),
    MayBeCurve(le=1),
]
# With the options of each algorithm.
FinalEpsilon = Annotated[
    float,
    Field(ge=0, le=1, description="share of random actions from epsilon_steps on"),
    EndOf("epsilon", "falls"),
]
ScheduleSteps = Annotated[
    int, Field(ge=0, description="environment steps from the first value to the final one")
]
Huber = Annotated[
    float | None,
    Field(gt=0, description="errors beyond this weigh linearly in the loss; none: squared loss"),
]
AdamEps = Annotated[float, Field(gt=0, description="Adam's epsilon")]
MaxGradNorm = Annotated[
    float | None, Field(gt=0, description="gradients are scaled down to this norm; none: never")
]
RewardScale = Annotated[float, Field(gt=0, description="rewards are multiplied by this before learning")]
RewardClip = Annotated[
    float | None,
    Field(
        gt=0,
        description="rewards, once normalised and scaled, are clipped to plus and minus this; none: off",
    ),
]
AllowedActions = Annotated[
    bool,
    Field(
        description="choose among the actions that the environment allows, and value no others; it needs"
        " action_masks() or info['action_mask']"
    ),
]
TargetKl = Annotated[
    float | None, Field(gt=0, description="a policy's update stops once it has moved this far; none: never")
]
NormalizeObs = Annotated[
    bool, Field(description="observations are whitened by running statistics"), Choices()
]
NormalizeAdvantages = Annotated[
    Literal["rollout", "none"],
    Field(description="a policy's advantages of each rollout are brought to mean 0, deviation 1"),
]
NormalizeReturns = Annotated[
    bool,
    Field(description="rewards are divided by the running deviation of the discounted return"),
    Choices(),
]
# Widths of layers.
Widths = tuple[Annotated[int, Field(ge=1)], ...]
ActorCriticWidths = Annotated[
    Widths,
    Field(description="widths of the hidden layers of actor and critic, each of which has its own"),
    Layers(),
]
InitialLogStd = Annotated[
    float,
    Field(
        ge=LOG_STD_RANGE[0],
        le=LOG_STD_RANGE[1],
        description="logarithm of the deviation of continuous actions at first, in units of half their range",
    ),
]
IMAGE_ENCODERS = (
    "network for images in observations. nature: three convolutions (Mnih et al., 2015); impala: a residual network"
    " (Espeholt et al., 2018), which learns more from a sample and takes several times as long; mlp: none, pixels are"
    " numbers like others; auto: nature. rows: of tables, such as of vehicles, the first row, and maximum and mean of"
    " features of the others beside it (Zaheer et al., 2017)"
)
ImageEncoder = Annotated[
    EncoderKind,
    Field(description=IMAGE_ENCODERS),
    Choices(("nature", "impala"), of_images=True),
    NotBeside("network"),
]
PolicyEncoder = Annotated[
    PolicyEncoderKind,
    Field(
        description=f"{IMAGE_ENCODERS}. pointer: of a table whose rows have actions of their own, such as hosts: the"
        " logits of these come from the row, by the same weights for all (Vinyals et al., 2015)"
    ),
    Choices(("nature", "impala"), of_images=True),
    NotBeside("network"),
]
OWN_NETWORK = (
    "module:Class of a torch.nn.Module of your own, in place of the network that the other settings describe; it is"
    " made as Class(obs_space, action_space, **network_options), and its forward(obs) returns"
)
OwnValues = Annotated[
    str | None, Field(description=f"{OWN_NETWORK} the values of all actions"), Reach(imports_network)
]
NetworkOptions = Annotated[
    KeyValues,
    Field(
        description="keyword arguments of your own network, such as width=256; a value is JSON, else it is text"
    ),
    Reach(functools.partial(passes_import_paths, receiver="the network")),
    Setting(words="KEY=VALUE"),
]
ActionMasks = Annotated[
    bool, Field(description="never take actions that the environment says cannot have an effect")
]
Precision = Annotated[
    Literal["fp32", "bf16"],
    Field(
        description="number format of the hidden layers' matrix products when learning; bf16 is faster where"
        " processors have it (AVX-512 BF16), and rounds to 3 digits"
    ),
]
UpdateBackend = Annotated[
    Literal["auto", "compiled", "torch"],
    Field(
        description="what takes the gradient steps. compiled: Rust, for separate perceptrons on the CPU in fp32"
        " or bf16 and the algorithm's own losses; torch: PyTorch; auto: compiled where it can be. Results differ"
        " by rounding alone"
    ),
    Setting(resumable=True),
]
# Staleness that algorithms allow which learn while experience is collected.
MaxStaleness = Annotated[
    int,
    Field(
        ge=0,
        description="updates that the policy of learned experience may be behind; older experience is dropped; 0:"
        " collect and learn in turns",
    ),
    Setting(resumable=True, option="--max-staleness"),
]
Memory = Annotated[
    MemoryKind,
    Field(
        description="a recurrent layer of the policy, which value functions use, too, for environments that do not show"
        " their whole state: gru or lstm"
    ),
    Choices(search=False),
]
MemorySize = Annotated[
    int,
    Field(ge=1, description="number of outputs of the recurrent layer"),
    Range(32, 256, log=True, search=False),
]
SequenceLength = Annotated[
    int,
    Field(
        ge=1,
        le=192,
        description="with a memory: steps that follow each other and are learned from together, at most; a batch has as"
        " many sequences as batch_size holds",
    ),
    Range(10, 80, log=True, search=False),
]
SequenceBurnIn = Annotated[
    int,
    Field(
        ge=0,
        le=64,
        description="with a memory: steps before those of a sequence, at most, that only bring the stored state of the"
        " memory, which older weights left, up to date",
    ),
]
BurnIn = Annotated[
    int,
    Field(
        ge=0,
        description="with a memory: first steps of each fragment that only bring the memory, which older policies left,"
        " up to date, and are not learned from",
    ),
]
