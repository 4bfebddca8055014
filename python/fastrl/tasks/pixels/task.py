"""Games that show images, learnt from a replay or from rollouts; scores are returns of whole games, before clipping."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from rich.console import Console

from fastrl.algorithms import find
from fastrl.algorithms.protocol import Algorithm
from fastrl.collectors.failures import failed
from fastrl.envs import contract
from fastrl.envs.pixels import make_seeded_pixels, make_stacked_pixels
from fastrl.envs.spec import EnvSpec, as_spec
from fastrl.networks.compiled_actor import Actor
from fastrl.tasks import pixels
from fastrl.tasks.pixels.settings import PRESETS, EnvConfig, preset_for
from fastrl.training.checkpoint import CheckpointError
from fastrl.training.episodes import build_env
from fastrl.training.evaluation import Advance, Returns
from fastrl.training.experience import Source
from fastrl.training.minibatches import ReplayConfig
from fastrl.training.replay_source import ActorConfig, ReplaySource
from fastrl.training.settings import RunConfig
from fastrl.training.task import Task


class PixelsTask(Task):
    """See `fastrl.training.task.Task`."""

    name = pixels.NAME
    summary = pixels.SUMMARY
    run = RunConfig(
        algo="dqn", total_timesteps=10_000_000, checkpoint_seconds=300.0, row_seconds=2.0, eval_episodes=10
    )
    env = EnvConfig()
    presets = PRESETS

    def settings_tables(self, algorithm: type[Algorithm[Any]]) -> dict[str, Any]:
        tables = super().settings_tables(algorithm)
        if algorithm.learns_from == "transitions":
            tables |= {"replay": ReplayConfig(), "collect": ActorConfig()}
        return tables

    def default_presets(self, settings: Any) -> Sequence[str]:
        return (preset_for(settings.env.id),)

    def preset_tables(self, config_type: type[Any]) -> Collection[str]:
        tables = super().preset_tables(config_type)
        # Presets have settings of actors that fill a replay, none of collectors of rollouts.
        return tables if "replay" in tables else set(tables) - {"collect"}

    def env_spec(self, settings: Any) -> EnvSpec:
        """A replay stacks frames by itself; in rollouts they are stacked."""
        if find(settings.run.algo).learns_from == "transitions":
            return self._spec(settings, make_seeded_pixels)
        return self._stacked_spec(settings)

    def _stacked_spec(self, settings: Any, **changes: Any) -> EnvSpec:
        return self._spec(settings, make_stacked_pixels, stack=settings.env.stack, **changes)

    def _spec(self, settings: Any, make: Callable[..., gymnasium.Env[Any, Any]], **changes: Any) -> EnvSpec:
        """Specification of an environment that a function of `fastrl.envs.pixels` makes.

        Args:
            changes: options that the settings do not have, or other values of them.
        """
        env: EnvConfig = settings.env
        options: dict[str, Any] = {}
        if env.sticky is not None:
            options["repeat_action_probability"] = env.sticky
        if env.id.startswith("SuperMarioBros"):
            options["actions"] = env.actions
        options |= {
            "env_id": env.id,
            "size": env.size,
            "frame_skip": env.frame_skip,
            "max_of_two": env.max_of_two,
            "noop_max": env.noop_max,
            "life_loss_ends": env.life_loss_ends,
            "clip_reward": env.clip_reward,
            "reward_scale": env.reward_scale,
        }
        spec = as_spec(make, **(options | changes))
        return dataclasses.replace(spec, id=env.id)

    def make_source(self, settings: Any, algorithm: type[Algorithm[Any]], console: Console) -> Source:
        if algorithm.learns_from != "transitions":
            return super().make_source(settings, algorithm, console)
        return ReplaySource(
            self.env_spec(settings),
            self.num_envs(settings),
            settings.replay,
            settings.collect,
            seed=settings.run.seed,
            stack=settings.env.stack,
            has_episode_info=True,
            console=console,
        )

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
        # An evaluated game continues after a lost life.
        spec = self._stacked_spec(settings, life_loss_ends=False)
        env = build_env(spec)
        algorithm = find(settings.run.algo)
        # A replay stacks frames along the first axis.
        stack_first = algorithm.learns_from == "transitions"
        height, width, stack = env.observation_space.shape or ()
        shape = (stack, height, width) if stack_first else (height, width, stack)
        try:
            actor = algorithm.make_actor(state["policy"], Box(0, 255, shape, np.uint8), env.action_space)
        except ValueError as error:
            contract.close(env)
            raise CheckpointError(f"{spec.id}: {error}") from None
        returns = []
        for number in np.random.SeedSequence([seed, 1]).generate_state(episodes):
            try:
                returns.append(_run_game(actor, env, int(number), stack_first=stack_first))
            except (Exception, SystemExit) as error:
                raise failed(
                    f"{spec.id} failed in the game that reset(seed={number}) started", error
                ) from error
            advance(1)
        contract.close(env)
        return Returns(tuple(returns))


def _run_game(actor: Actor, env: gymnasium.Env[Any, Any], seed: int, *, stack_first: bool) -> float:
    """The return of one game, before clipping, in which the best action is always chosen.

    Args:
        env: with stacked frames, uint8 [h, w, stack].
        stack_first: the actor takes rows of [stack, h, w].
    """
    nothing = np.zeros(1, np.uint64), np.zeros(1, np.int64)
    actions, log_probs = np.zeros(1, np.int64), np.zeros(1, np.float32)
    states = np.zeros((1, actor.state_size), np.float32) if actor.state_size else None
    obs, info = env.reset(seed=seed)
    while "episode" not in info:
        row = (np.moveaxis(obs, -1, 0) if stack_first else obs).reshape(1, -1)
        actor.act(row, *nothing, actions, log_probs, states=states, greedy=True)
        obs, _, _, _, info = env.step(int(actions[0]))
    return float(info["episode"]["r"])


TASK = PixelsTask()
