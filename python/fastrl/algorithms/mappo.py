"""PPO for many agents: MAPPO with a central critic (Yu et al., 2022, arXiv:2103.01955), independent PPO with critics of
their own (de Witt et al., 2020, arXiv:2011.09533)."""

import copy
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.flat_adam import FlatAdam, parts
from fastrl.algorithms.multi_agent import MultiAgentLearner, PolicySums
from fastrl.algorithms.multi_agent_settings import MultiAgentConfig
from fastrl.networks.multi_agent import PolicyNetwork
from fastrl.utils.config import section
from fastrl.utils.tunable import Range


@section
class MAPPOConfig(MultiAgentConfig):
    """Hyper-parameters of PPO for many agents."""

    num_epochs: Annotated[
        int, Field(ge=1, description="passes of policies over the rollout in an update"), Range(1, 10)
    ] = 2
    clip_range: hp.ClipRange = 0.2
    target_kl: hp.TargetKl = None


class MAPPO(MultiAgentLearner):
    """PPO with a critic that sees what all agents of an environment observe, see `MultiAgentLearner`.

    Dropout is off when acting. With dropout, the ratio of a sample compares the new policy with the old one under
    the same mask, drawn for each minibatch: at the first step every ratio is exactly 1, and it measures how far
    the parameters have moved, not the noise of the masks (compare Hausknecht and Wagener, 2022, "Consistent Dropout
    for Policy Gradient Reinforcement Learning"). It costs one more forward pass, of the old policy.
    """

    name = "mappo"
    summary = "PPO of many agents; the critic sees what all agents see"
    config_type = MAPPOConfig
    config: MAPPOConfig

    @property
    def central_critic(self) -> bool:
        return True

    def _update_policy(
        self,
        name: str,
        optimizer: FlatAdam[PolicyNetwork],
        rows: Tensor,
        learning_rate: float,
        entropy_coef: float,
    ) -> list[PolicySums]:
        config = self.config
        old = copy.deepcopy(optimizer.network).requires_grad_(False) if config.dropout else None
        steps = []
        for _ in range(config.num_epochs):
            for part in parts(rows, config.minibatch_size, self._generators["policies"]):
                sums = self._policy_step(
                    optimizer,
                    part,
                    old,
                    clip_range=config.clip_range,
                    entropy_coef=entropy_coef,
                    learning_rate=learning_rate,
                )
                steps.append(sums)
                if config.target_kl is not None and sums.approx_kl > config.target_kl:
                    return steps
        return steps


class IPPO(MAPPO):
    """Independent PPO: as `MAPPO`, but each critic sees what its agent observes."""

    name = "ippo"
    summary = "PPO of many agents; each critic sees what its agent sees"

    @property
    def central_critic(self) -> bool:
        return False
