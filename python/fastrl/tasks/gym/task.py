"""Any environment of Gymnasium: no protocol of its own, scores are returns."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastrl.envs import contract
from fastrl.envs.spec import EnvSpec
from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import ActorCritic
from fastrl.tasks import gym
from fastrl.tasks.gym.settings import PRESETS, EnvConfig, presets_for
from fastrl.training.checkpoint import CheckpointError
from fastrl.training.collecting import build_env, episode_steps
from fastrl.training.episodes import play_episodes
from fastrl.training.evaluation import Advance, Returns
from fastrl.training.task import Task
from fastrl.utils.env_options import parse_options


class GymTask(Task):
    """See `fastrl.training.task.Task`."""

    name = gym.NAME
    summary = gym.SUMMARY
    env = EnvConfig()
    presets = PRESETS

    def description(self, prog: str) -> str:
        return (
            "Trains on any environment of Gymnasium, such as\n"
            f"  {prog} gym --env CartPole-v1 --collect executor --algorithm ppo --n-workers auto"
        )

    def default_presets(self, env_id: str) -> Sequence[str]:
        return presets_for(env_id)

    def env_spec(self, settings: Any) -> EnvSpec:
        return EnvSpec(settings.env.id, parse_options(settings.env.options))

    def evaluate(
        self,
        state: Mapping[str, Any],
        settings: Any,
        *,
        episodes: int,
        seed: int,
        advance: Advance,
        **options: Any,
    ) -> Returns:
        policy = ActorCritic.from_state(state["policy"])
        takes = Actions.from_state(state["policy"]["action_space"])
        spec = self.env_spec(settings)
        env = build_env(spec)
        num_steps = episode_steps(settings.collect, env)
        obs_dim, drives = math.prod(env.observation_space.shape or ()), Actions(env.action_space)
        contract.close(env)
        ours = policy.obs_dim, policy.num_actions, policy.log_std is not None, takes.state()
        if ours != (obs_dim, drives.size, drives.is_box, drives.state()):
            raise CheckpointError(
                f"the policy takes {policy.obs_dim} numbers for {takes.state()}, {spec.id} has {obs_dim} for"
                f" {drives.state()}"
            )
        return Returns(play_episodes(spec, policy, takes, episodes, seed, num_steps, advance))


TASK = GymTask()
