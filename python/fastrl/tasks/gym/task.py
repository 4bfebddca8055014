"""Any environment of Gymnasium: no protocol of its own, scores are returns."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv

from fastrl.envs.rows import ObsRows
from fastrl.envs.spec import EnvSpec
from fastrl.play.episodes import build_any, build_env, episode_steps, facts_of
from fastrl.play.play import episode_returns
from fastrl.tasks import gym
from fastrl.tasks.gym.settings import PRESETS, EnvConfig
from fastrl.training.evaluation import Returns
from fastrl.training.task import Task
from fastrl.utils.env_options import parse_options

if TYPE_CHECKING:
    from fastrl.play.film import Films
    from fastrl.training.evaluation_options import EvaluationOptions


class GymTask(Task):
    """See `fastrl.training.task.Task`."""

    name = gym.NAME
    summary = gym.SUMMARY
    env = EnvConfig()
    presets = PRESETS
    evaluation_options = ("device",)

    def description(self, prog: str) -> str:
        return (
            "Trains on any environment of Gymnasium, such as\n"
            f"  {prog} CartPole-v1 --algo dqn\n"
            f"  {prog} FrozenLake-v1 --env-options map_name=8x8 is_slippery=false\n"
            f"  {prog} my_module:make_env --num-envs 8 --lr 1e-4"
        )

    def default_presets(self, settings: Any) -> Sequence[str]:
        names = PRESETS.presets_for(_plain_id(settings.env.id))
        return (self._kind(settings),) if names is None else names

    def usual_algorithm(self, env_id: Any) -> str:
        return (
            PRESETS.algorithm_for(_plain_id(env_id)) if isinstance(env_id, str) else None
        ) or self.run.algo

    def _kind(self, settings: Any) -> Literal["discrete", "continuous", "images"]:
        """The kind of the environment, which is built for that; of one that cannot be built, "discrete"."""
        try:
            facts = facts_of(self.env_spec(settings), self.num_envs(settings))
        except Exception:  # the trainer builds it again, and says what is wrong
            return "discrete"
        if ObsRows(facts.obs_space).kind != "vector":
            return "images"
        return "continuous" if isinstance(facts.action_space, Box) else "discrete"

    def env_spec(self, settings: Any) -> EnvSpec:
        options = parse_options(settings.env.options)
        return EnvSpec(settings.env.id, options) if self.spec is None else self.spec.with_options(options)

    def evaluate(self, state: Mapping[str, Any], settings: Any, options: "EvaluationOptions") -> Returns:
        """Scores a policy by the returns of episodes."""
        spec = self.play_spec(settings).as_rows()
        env = build_any(spec, self.num_envs(settings))
        num_steps, is_vector = episode_steps(env, self.play_steps(settings)), isinstance(env, VectorEnv)
        if is_vector:
            spec.close(env)
        with contextlib.closing(self.played(state, settings, spec, env, device=options.device)) as played:
            returns = played.returns(options.episodes, options.seed, num_steps, options.advance)
        spec.close(env)
        return Returns(returns, seeded=not is_vector)

    def evaluate_agent(self, path: str, settings: Any, options: "EvaluationOptions") -> Returns:
        """Scores an agent of the user's own in the environment as Gymnasium makes it."""
        from fastrl.play.own_agent import OwnAgent

        spec = self.play_spec(settings)
        env = build_env(spec)
        agent, num_steps = OwnAgent(path, env.action_space), episode_steps(env, self.play_steps(settings))
        returns = episode_returns(
            agent, env, options.episodes, options.seed, num_steps, options.advance, name=spec.id
        )
        spec.close(env)
        return Returns(returns)

    def agent_films(self, path: str, settings: Any) -> "Films":
        from fastrl.play.film import agent_films

        return agent_films(path, self.play_spec(settings), self.play_steps(settings))


def _plain_id(env_id: str) -> str:
    """An id without the module in front that registers it (``module:id``)."""
    return env_id.rpartition(":")[2]


TASK = GymTask()
