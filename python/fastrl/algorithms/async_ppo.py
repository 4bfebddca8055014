"""PPO that learns while experience is collected, and so from experience of older policies."""

from collections.abc import Sequence

from fastrl.algorithms.async_settings import AsyncPPOConfig, AsyncPPODeclaration
from fastrl.algorithms.ppo import PPO
from fastrl.rollout.fragment import Fragment
from fastrl.utils.timer import Stopwatch


class AsyncPPO(AsyncPPODeclaration, PPO):
    """PPO from experience of older policies; see `PPO.load_rollout` for how that is corrected."""

    config: AsyncPPOConfig

    def update(self, experience: Sequence[Fragment], watch: Stopwatch) -> None:
        corrected = self.max_staleness > 0 and self.config.correct_off_policy
        self.load_rollout(experience, watch, correct_off_policy=corrected)
        self._metrics = self.learn(watch)
