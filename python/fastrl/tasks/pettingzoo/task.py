"""Any parallel environment of PettingZoo: no protocol of its own, scores are mean returns of the agents."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from rich.console import Console

from fastrl.algorithms.protocol import Algorithm
from fastrl.envs.adapters.parallel import ParallelVectorEnv
from fastrl.envs.contract import ContractError
from fastrl.envs.record_episodes import run_episodes
from fastrl.envs.spec import EnvSpec
from fastrl.networks.action_space import Actions
from fastrl.networks.multi_agent import MultiAgentPolicy, PolicyNetwork
from fastrl.rollout.multi_agent import MultiAgentRollout
from fastrl.tasks import pettingzoo
from fastrl.tasks.pettingzoo.settings import PRESETS, EnvConfig
from fastrl.training.checkpoint import CheckpointError
from fastrl.training.errors import TrainError
from fastrl.training.evaluation import Advance, Returns
from fastrl.training.experience import Source
from fastrl.training.multi_agent import MultiAgentSource
from fastrl.training.settings import RunConfig
from fastrl.training.task import Task
from fastrl.utils.env_options import parse_options
from fastrl.utils.timer import Stopwatch

# Stream of the seeds of evaluations; training has others.
_STREAM = 1


class ParallelSource(MultiAgentSource):
    """As `MultiAgentSource`, of environments that may break PettingZoo's interface."""

    collector = "sequential"

    def __init__(self, env: ParallelVectorEnv, env_id: str, episode_steps: int, console: Console) -> None:
        super().__init__(env, env_id, episode_steps)
        self._console = console

    def next(self, watch: Stopwatch) -> MultiAgentRollout | None:
        try:
            return super().next(watch)
        except ContractError as error:
            raise TrainError(str(error)) from None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if not state["collector"]:
            return
        # Where the repeated steps of an environment lead; of a deterministic one these are the saved observations.
        obs, alive = self.env.env.observe()
        saved = state["collector"]
        self._collector.load_state_dict({"obs": torch.from_numpy(obs), "alive": torch.from_numpy(alive)})
        if not (
            torch.equal(torch.from_numpy(obs), saved["obs"]) and np.array_equal(alive, saved["alive"].numpy())
        ):
            self._console.print(
                f"{self.env_id} is not deterministic: its episodes continue otherwise than in the checkpoint",
                highlight=False,
            )


class PettingZooTask(Task):
    """See `fastrl.training.task.Task`."""

    name = pettingzoo.NAME
    summary = pettingzoo.SUMMARY
    run = RunConfig(algo="ippo")
    env = EnvConfig()
    presets = PRESETS
    learns_from = ("multi_agent_rollouts",)

    def description(self, prog: str) -> str:
        return (
            "Trains on any parallel environment of PettingZoo, such as\n"
            f"  {prog} mpe2.simple_spread_v3:parallel_env --algo mappo"
        )

    def env_spec(self, settings: Any) -> EnvSpec:
        return self.spec or EnvSpec(settings.env.id, parse_options(settings.env.options))

    def make_env(self, settings: Any, num_envs: int) -> ParallelVectorEnv:
        """The environment that the settings describe.

        Raises:
            TrainError: it cannot be built.
        """
        spec = self.env_spec(settings)
        try:
            return ParallelVectorEnv(
                spec.build_object,
                num_envs,
                max_episode_steps=settings.env.max_episode_steps,
                name=spec.id,
            )
        except (ValueError, TypeError) as error:
            raise TrainError(str(error)) from None

    def make_source(self, settings: Any, algorithm: type[Algorithm[Any]], console: Console) -> Source:
        env = self.make_env(settings, settings.env.num_envs)
        return ParallelSource(env, settings.env.id, settings.env.max_episode_steps, console)

    def resolve_defaults(self, settings: Any) -> Any:
        """Agents of other spaces have policies of their own."""
        table = self.algorithm_table(settings.run.algo)
        config = getattr(settings, table)
        if config.policies or not config.share:
            return settings
        env = self.make_env(settings, 1)
        env.close()
        if len(set(env.groups)) == 1:
            return settings
        return dataclasses.replace(settings, **{table: dataclasses.replace(config, policies=env.groups)})

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
        policy = MultiAgentPolicy.from_state(state["policy"])
        seeds = [int(s) for s in np.random.SeedSequence([seed, _STREAM]).generate_state(episodes, np.uint64)]
        returns: list[float] = []
        for start in range(0, episodes, settings.env.num_envs):
            batch = seeds[start : start + settings.env.num_envs]
            env = self.make_env(settings, len(batch))
            _check_fits(policy, env)
            try:
                returns += run_episodes(env, policy.act, batch, advance)["return_mean"].tolist()
            except ContractError as error:
                raise TrainError(str(error)) from None
            env.close()
        return Returns(tuple(returns))


def _check_fits(policy: MultiAgentPolicy, env: ParallelVectorEnv) -> None:
    """Raises CheckpointError if a policy is of other agents than the environment's."""
    obs_dims = {(actor.obs_dim,) for actor in policy.policies.values() if isinstance(actor, PolicyNetwork)}
    if (
        obs_dims != {env.single_observation_space.shape}
        or policy.num_agents != env.num_agents
        or policy.actions.state() != Actions(env.single_action_space).state()
    ):
        raise CheckpointError(f"the policy does not fit its environment, {env.name}")


TASK = PettingZooTask()
