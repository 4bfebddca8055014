"""PPO that learns while experience is collected, and so from experience of older policies."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.rollout.fragment import Fragment
from fastrl.utils.config import section
from fastrl.utils.timer import Stopwatch


@section
class AsyncPPOConfig(PPOConfig):
    """Hyper-parameters of PPO that learns while experience is collected."""

    max_staleness: hp.MaxStaleness = 2
    burn_in: hp.BurnIn = 0
    correct_off_policy: Annotated[
        bool, Field(description="correct experience of older policies by V-trace, as impala always does")
    ] = True


class AsyncPPO(PPO):
    """PPO from experience of older policies; see `PPO.load_rollout` for how that is corrected."""

    name = "async-ppo"
    summary = "PPO that collects while it learns"
    config_type = AsyncPPOConfig
    config: AsyncPPOConfig

    @property
    def max_staleness(self) -> int:
        return self.config.max_staleness

    @property
    def burn_in(self) -> int:
        return self.config.burn_in

    def update(self, experience: Sequence[Fragment], watch: Stopwatch) -> None:
        corrected = self.max_staleness > 0 and self.config.correct_off_policy
        self.load_rollout(experience, watch, correct_off_policy=corrected)
        self._metrics = self.learn(watch)
