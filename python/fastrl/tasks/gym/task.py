"""Any environment of Gymnasium: no protocol of its own, scores are returns."""

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv

from fastrl.algorithms import find
from fastrl.envs import contract
from fastrl.envs.rows import ObsRows
from fastrl.envs.spec import EnvSpec
from fastrl.tasks import gym
from fastrl.tasks.gym.presets import PRESETS, Kind, presets_for
from fastrl.tasks.gym.settings import EnvConfig
from fastrl.training.checkpoint import CheckpointError
from fastrl.training.episodes import (
    build_any,
    episode_steps,
    play_episodes,
    play_vector_episodes,
    spaces_of,
)
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
            f"  {prog} CartPole-v1 --collector executor --algo ppo --n-workers auto"
        )

    def default_presets(self, settings: Any) -> Sequence[str]:
        names = presets_for(settings.env.id)
        return (self._kind(settings),) if names is None else names

    def _kind(self, settings: Any) -> Kind:
        """The kind of the environment, which is built for that; of one that cannot be built, "discrete"."""
        try:
            spec = self.env_spec(settings).as_rows()
            env = build_any(spec, self.num_envs(settings))
            obs_space, action_space = spaces_of(env)
            if isinstance(env, VectorEnv):
                spec.close_vector(env)
            else:
                contract.close(env)
        except Exception:  # the trainer builds it again, and says what is wrong
            return "discrete"
        if ObsRows(obs_space).kind != "vector":
            return "images"
        return "continuous" if isinstance(action_space, Box) else "discrete"

    def env_spec(self, settings: Any) -> EnvSpec:
        return self.spec or EnvSpec(settings.env.id, parse_options(settings.env.options))

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
        spec = self.env_spec(settings).as_rows()
        env = build_any(spec, self.num_envs(settings))
        policy = state["policy"]
        try:
            actor = find(settings.run.algo).make_actor(policy, *spaces_of(env))
        except ValueError as error:
            raise CheckpointError(f"{spec.id}: {error}") from None
        num_steps = episode_steps(env, settings.collect.max_episode_steps)
        squash = bool(policy.get("action_space", {}).get("squash", False))
        if isinstance(env, VectorEnv):
            spec.close_vector(env)
            return Returns(
                play_vector_episodes(spec, env, actor, episodes, seed, num_steps, advance, squash=squash)
            )
        returns = play_episodes(env, spec.id, actor, episodes, seed, num_steps, advance, squash=squash)
        contract.close(env)
        return Returns(returns)


TASK = GymTask()
