"""Settings of PPO."""

from typing import Annotated, Any, Literal

from pydantic import Field

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.network_settings import ActorCriticConfig
from fastrl.algorithms.protocol import Algorithm
from fastrl.utils.config import section
from fastrl.utils.tunable import Choices, Range


@section
class PPOConfig(ActorCriticConfig):
    """Hyper-parameters of PPO."""

    num_epochs: Annotated[
        int, Field(ge=1, description="passes over the rollout in an update"), Range(1, 16)
    ] = 4
    minibatch_size: Annotated[
        hp.MinibatchSize,
        Choices((64, 128, 256, 512, 1024, 2048, 4096), ordered=True),
    ] = 4096
    gae_lambda: hp.GaeLambda = 0.95
    clip_range: hp.ClipRange = 0.2
    normalize_advantages: Annotated[
        Literal["rollout", "minibatch", "none"],
        Field(
            description="advantages of each rollout, or of each minibatch, are brought to mean 0, deviation 1"
        ),
    ] = "rollout"
    value_clip: Annotated[
        float | None,
        Field(gt=0, description="clip range of value predictions, in units of return; none: off"),
    ] = None
    target_kl: hp.TargetKl = None
    critic_warmup: Annotated[
        int,
        Field(
            ge=0,
            description="environment steps at the start of the run, or of a stage of it, in which the value function"
            " alone learns: for runs that start with the weights of another one",
        ),
    ] = 0
    init_kl_coef: Annotated[
        float,
        Field(
            ge=0,
            description="weight of KL(first, policy), the divergence from the policy that the run, or a stage of it,"
            " starts with, such as a clone of an expert (--init); 0: off",
        ),
    ] = 0.0
    init_kl_steps: Annotated[
        int,
        Field(
            ge=0,
            description="environment steps after the critic's warm-up in which that weight falls to 0; 0: to the end of"
            " the run or stage",
        ),
    ] = 0
    freeze_obs_norm: Annotated[
        bool,
        Field(
            description="with normalize_obs: statistics of observations stay as they came with --init, instead of"
            " taking in the observations of this run"
        ),
    ] = False
    actor_inputs: Annotated[
        int,
        Field(
            ge=0,
            description="numbers of an observation that the policy sees, the first ones; the value function sees all,"
            " such as the true state of a simulator, which is not needed after training; 0: all",
        ),
    ] = 0
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"],
        Field(
            description="number format of the network's arithmetic while it learns (mixed precision); bf16 is faster"
            " for images, on GPUs and on CPUs that have instructions for it (AVX-512 BF16, AMX)"
        ),
    ] = "fp32"
    compile: Annotated[bool, Field(description="torch.compile the network on CUDA; CPUs never do")] = False
    update_backend: hp.UpdateBackend = "auto"


class PPODeclaration(Algorithm[Any]):
    name = "ppo"
    summary = "proximal policy optimisation: collects, then learns"
    config_type = PPOConfig
