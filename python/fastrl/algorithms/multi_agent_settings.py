"""Settings of algorithms that learn policies of many agents."""

from typing import Annotated, Literal

from pydantic import Field

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.protocol import MultiAgentAlgorithm
from fastrl.algorithms.schedules import ScheduleName
from fastrl.networks.kinds import Init, PerceptronActivation
from fastrl.utils.config import section
from fastrl.utils.curve import MayBeCurve
from fastrl.utils.tunable import Choices, Range


@section
class TeamNetworkConfig:
    """Policies of many agents and their networks."""

    share: Annotated[bool, Field(description="one policy for all agents; false: one for each")] = True
    policies: Annotated[
        tuple[str, ...],
        Field(description="the name of each agent's policy, as many as agents; empty: see share"),
    ] = ()
    agent_ids: Annotated[
        bool, Field(description="policies (and own critics) observe the index of the agent, one-hot")
    ] = False
    hidden: hp.ActorCriticWidths = (128, 64, 32)
    encoder: hp.ImageEncoder = "auto"
    activation: Annotated[
        PerceptronActivation, Field(description="after each hidden layer; relu is much the fastest on CPUs")
    ] = "relu"
    init: Annotated[Init, Field(description="how hidden weights are drawn at first")] = "orthogonal"
    initial_log_std: hp.InitialLogStd = -0.5
    normalize_obs: hp.NormalizeObs = False
    action_masks: hp.ActionMasks = False

    def policy_names(self, num_agents: int) -> tuple[str, ...]:
        """The name of each agent's policy.

        Raises:
            ValueError: other agents are named.
        """
        if not self.policies:
            return ("shared",) * num_agents if self.share else tuple(f"agent{i}" for i in range(num_agents))
        if len(self.policies) != num_agents:
            raise ValueError(
                f"policies should name the policy of each of {num_agents} agents, got {len(self.policies)} names"
            )
        return self.policies


@section
class MultiAgentConfig(TeamNetworkConfig):
    """Hyper-parameters that all learners of many agents share."""

    num_steps: hp.NumSteps = 64
    minibatch_size: Annotated[
        int,
        Field(ge=1, description="at most this many agent steps in a gradient step, in equal parts"),
        Choices((512, 1024, 2048, 4096, 8192), ordered=True),
    ] = 8192
    gamma: hp.Gamma = 0.99
    gae_lambda: hp.GaeLambda = 0.95
    dropout: Annotated[
        float,
        Field(ge=0, lt=1, description="share of hidden units left out while learning, never when acting"),
    ] = 0.0
    memory: hp.Memory = "none"
    memory_size: hp.MemorySize = 64
    normalize_rewards: hp.NormalizeReturns = True
    normalize_advantages: hp.NormalizeAdvantages = "rollout"
    learning_rate: hp.LearningRate = 1e-3
    critic_learning_rate: Annotated[
        hp.MaybeScheduled | None,
        Field(description="learning rate of the critics; none: that of the policies"),
        MayBeCurve(optional=True),
    ] = None
    lr_schedule: Annotated[
        ScheduleName,
        Field(description="how learning rates that are numbers change from update to update"),
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
    entropy_coef: hp.EntropyCoef = 0.01
    final_entropy_coef: hp.FinalEntropyCoef = 0.001
    critic_epochs: Annotated[
        int, Field(ge=1, description="passes of critics over the rollout in an update")
    ] = 2
    max_grad_norm: Annotated[
        float, Field(gt=0, description="gradients of each network are scaled down to this norm")
    ] = 1.0
    precision: hp.Precision = "fp32"
    update_backend: hp.UpdateBackend = "auto"


@section
class MAPPOConfig(MultiAgentConfig):
    """Hyper-parameters of PPO for many agents."""

    num_epochs: Annotated[
        int, Field(ge=1, description="passes of policies over the rollout in an update"), Range(1, 10)
    ] = 2
    clip_range: hp.ClipRange = 0.2
    target_kl: hp.TargetKl = None


class MAPPODeclaration(MultiAgentAlgorithm):
    name = "mappo"
    summary = "PPO of many agents; the critic sees what all agents see"
    config_type = MAPPOConfig


class IPPODeclaration(MAPPODeclaration):
    name = "ippo"
    summary = "PPO of many agents; each critic sees what its agent sees"


@section
class REINFORCEConfig(MultiAgentConfig):
    """Hyper-parameters of REINFORCE; critics are its baselines."""

    critic: Annotated[
        Literal["own", "central"],
        Field(description="observations that baselines see: own, or those of all agents of the environment"),
    ] = "central"
    gae_lambda: Annotated[
        float,
        Field(ge=0, le=1, description="1: whole returns, less the baseline; below, an actor-critic"),
    ] = 1.0
    critic_epochs: Annotated[
        int, Field(ge=1, description="passes of baselines over the rollout in an update")
    ] = 4


class REINFORCEDeclaration(MultiAgentAlgorithm):
    name = "reinforce"
    summary = "policy gradient with a baseline"
    config_type = REINFORCEConfig
