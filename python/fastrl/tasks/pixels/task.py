"""Games that show images, learnt from a replay; scores are returns of whole games, before clipping."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from rich.console import Console

from fastrl.algorithms.protocol import Algorithm
from fastrl.collectors.actor_process import Stacks
from fastrl.collectors.failures import failed
from fastrl.envs import contract
from fastrl.envs.pixels import make_seeded_pixels
from fastrl.envs.spec import EnvSpec, as_spec
from fastrl.networks.encoded_q import q_type
from fastrl.networks.q_network import ActionValues
from fastrl.tasks import pixels
from fastrl.tasks.pixels.settings import PRESETS, EnvConfig, preset_for
from fastrl.training.checkpoint import CheckpointError
from fastrl.training.episodes import build_env
from fastrl.training.evaluation import Advance, Returns
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
    learns_from = ("transitions",)

    def settings_tables(self, algorithm: type[Algorithm[Any]]) -> dict[str, Any]:
        tables = super().settings_tables(algorithm)
        if algorithm.learns_from == "transitions":
            tables |= {"replay": ReplayConfig(), "collect": ActorConfig()}
        return tables

    def default_presets(self, settings: Any) -> Sequence[str]:
        return (preset_for(settings.env.id),)

    def env_spec(self, settings: Any) -> EnvSpec:
        env: EnvConfig = settings.env
        options: dict[str, Any] = {}
        if env.sticky is not None:
            options["repeat_action_probability"] = env.sticky
        if env.id.startswith("SuperMarioBros"):
            options["actions"] = env.actions
        spec = as_spec(
            make_seeded_pixels,
            env_id=env.id,
            size=env.size,
            frame_skip=env.frame_skip,
            max_of_two=env.max_of_two,
            noop_max=env.noop_max,
            life_loss_ends=env.life_loss_ends,
            clip_reward=env.clip_reward,
            reward_scale=env.reward_scale,
            **options,
        )
        return dataclasses.replace(spec, id=env.id)

    def make_source(self, settings: Any, algorithm: type[Algorithm[Any]], console: Console) -> ReplaySource:
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
        network = q_type(state["policy"]).from_state(state["policy"])
        spec = self.env_spec(settings)
        # An evaluated game continues after a lost life.
        env = build_env(dataclasses.replace(spec, options={**spec.options, "life_loss_ends": False}))
        stack = settings.env.stack
        shape, num_actions = [stack, *(env.observation_space.shape or ())], int(env.action_space.n)  # type: ignore[attr-defined]
        policy = state["policy"]["architecture"]
        if (policy["obs_shape"], policy["num_actions"]) != (shape, num_actions):
            contract.close(env)
            raise CheckpointError(
                f"the policy takes images {policy['obs_shape']} for {policy['num_actions']} actions, {spec.id} has"
                f" {shape} for {num_actions}"
            )
        on_gpu = settings.run.device != "cpu" and torch.cuda.is_available()
        network.to("cuda" if on_gpu else "cpu")
        returns = []
        for number in np.random.SeedSequence([seed, 1]).generate_state(episodes):
            try:
                returns.append(_run_game(network, env, stack, int(number)))
            except (Exception, SystemExit) as error:
                raise failed(
                    f"{spec.id} failed in the game that reset(seed={number}) started", error
                ) from error
            advance(1)
        contract.close(env)
        return Returns(tuple(returns))


@torch.inference_mode()
def _run_game(network: ActionValues, env: gymnasium.Env[Any, Any], stack: int, seed: int) -> float:
    """The return of one game, before clipping, in which the best action is always chosen."""
    frame, info = env.reset(seed=seed)
    stacks = Stacks(1, stack, frame.shape, frame.dtype)  # of one frame, [1, 1, h, w]
    stacks.begin(0, frame)
    device = next(network.parameters()).device
    while "episode" not in info:
        action = int(network(torch.from_numpy(stacks.obs).to(device)).argmax())
        frame, _, _, _, info = env.step(action)
        stacks.push(0, frame)
    return float(info["episode"]["r"])


TASK = PixelsTask()
