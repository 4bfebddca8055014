"""Settings of actor-critics that learn while experience is collected: PPO and IMPALA."""

from typing import Annotated, Any

from pydantic import Field

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.network_settings import ActorCriticConfig
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Algorithm
from fastrl.utils.config import section
from fastrl.utils.tunable import Range


@section
class AsyncPPOConfig(PPOConfig):
    """Hyper-parameters of PPO that learns while experience is collected."""

    max_staleness: hp.MaxStaleness = 2
    burn_in: hp.BurnIn = 0
    correct_off_policy: Annotated[
        bool, Field(description="correct experience of older policies by V-trace, as impala always does")
    ] = True


class AsyncPPODeclaration(Algorithm[Any]):
    name = "async-ppo"
    summary = "PPO that collects while it learns"
    config_type = AsyncPPOConfig


@section
class ImpalaConfig(ActorCriticConfig):
    """Hyper-parameters of IMPALA."""

    max_staleness: hp.MaxStaleness = 2
    num_steps: Annotated[hp.NumSteps, Range(5, 80, log=True)] = 20
    trace_lambda: Annotated[
        float, Field(ge=0, le=1, description="V-trace: 0 trusts the value function, 1 the rewards")
    ] = 1.0
    burn_in: hp.BurnIn = 0
    normalize_advantages: hp.NormalizeAdvantages = "rollout"
    rho_clip: Annotated[
        float, Field(gt=0, description="V-trace: most that an action's probability ratio weighs")
    ] = 1.0
    c_clip: Annotated[
        float, Field(gt=0, description="V-trace: the same of how far corrections reach back")
    ] = 1.0


class IMPALADeclaration(Algorithm[Any]):
    name = "impala"
    summary = "actor-critic with V-trace that collects while it learns: one gradient step in each update"
    config_type = ImpalaConfig
