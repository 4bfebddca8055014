"""Games that show images, learnt from a replay or from rollouts; scores are returns of whole games, before clipping."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastrl.algorithms import find
from fastrl.algorithms.protocol import Algorithm, OffPolicyAlgorithm
from fastrl.envs import contract
from fastrl.envs.pixels import make_stacked_pixels
from fastrl.envs.spec import EnvSpec, as_spec
from fastrl.play.episodes import build_env
from fastrl.play.play import play
from fastrl.runs.errors import TrainError
from fastrl.runs.settings import RunConfig
from fastrl.tasks import pixels
from fastrl.tasks.pixels.settings import PRESETS, EnvConfig
from fastrl.training.evaluation import Returns
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.training.task import Task
from fastrl.utils.env_options import parse_options

if TYPE_CHECKING:
    from rich.console import Console

    from fastrl.sources.source import Source

# Frames after which a game on film is cut off: half an hour of Atari.
GAME_FRAMES = 108_000


class PixelsTask(Task):
    """See `fastrl.training.task.Task`."""

    name = pixels.NAME
    summary = pixels.SUMMARY
    run = RunConfig(
        algo="dqn", total_timesteps=10_000_000, checkpoint_seconds=300.0, row_seconds=2.0, eval_episodes=10
    )
    env = EnvConfig()
    # Frames take time: workers play while the learner learns, and the network, which is large, reaches them seldom.
    replay: ClassVar[Mapping[str, Any]] = {
        "capacity": 400_000,
        "learning_starts": 10_000,
        "train_freq": 16,
        "overlap": True,
    }
    presets = PRESETS
    evaluation_options = ("device",)

    def description(self, prog: str) -> str:
        return (
            "Trains on games that show images: Atari, Mario, fastrl/Catch-v0 and others, such as\n"
            f"  {prog} ALE/Pong-v5 --algo ppo\n"
            f"  {prog} ALE/Breakout-v5 --env-options repeat_action_probability=0 --n-workers 8"
        )

    def default_presets(self, settings: Any) -> Sequence[str]:
        return PRESETS.presets_for(settings.env.id) or ()

    def env_spec(self, settings: Any) -> EnvSpec:
        return self._spec(settings, **({"channels_first": True} if self.frames_first(settings) else {}))

    def play_spec(self, settings: Any) -> EnvSpec:
        """Stacked frames whatever the algorithm, whole games, and their own rewards."""
        return self._spec(settings, life_loss_ends=False, clip_reward=False, reward_scale=1.0)

    def play_steps(self, settings: Any) -> int:
        return GAME_FRAMES // int(settings.env.frame_skip)

    def episode_info(self, settings: Any) -> Sequence[str]:
        """Return and length of whole games, and the key that marks lost lives, by which a resume finds where the
        running game was reset."""
        lives = (contract.CONTINUES,) if settings.env.life_loss_ends else ()
        return (contract.GAME_RETURN, contract.GAME_LENGTH, *lives)

    def frames_first(self, settings: Any) -> bool:
        """A replay stores single frames and stacks them along the first axis."""
        return issubclass(find(settings.run.algo), OffPolicyAlgorithm)

    def _spec(self, settings: Any, **changes: Any) -> EnvSpec:
        """Specification of an environment of stacked frames.

        Args:
            changes: options that the settings do not have, or other values of them.
        """
        env: EnvConfig = settings.env
        names = ("stack", "size", "frame_skip", "max_of_two", "noop_max", "life_loss_ends", "clip_reward")
        options = {"env_id": env.id, "env_options": parse_options(env.options)}
        options |= {name: getattr(env, name) for name in (*names, "reward_scale")} | changes
        spec = as_spec(make_stacked_pixels, **options)
        return dataclasses.replace(spec, id=env.id)

    def make_source(self, settings: Any, algorithm: type[Algorithm[Any]], console: Console) -> Source:
        if not issubclass(algorithm, OffPolicyAlgorithm):
            return super().make_source(settings, algorithm, console)
        if settings.demos.path is not None or self.demos is not None:
            raise TrainError(
                "--demos: a replay of frames takes no demonstrations; leave them out, or train with bc"
            )
        from fastrl.sources.transitions import TransitionSource

        return TransitionSource(
            self.env_spec(settings),
            self.num_envs(settings),
            settings.collect,
            settings.replay,
            stack=settings.env.stack,
            seed=settings.run.seed,
            console=console,
            episode_info=self.episode_info(settings),
        )

    def evaluate(self, state: Mapping[str, Any], settings: Any, options: EvaluationOptions) -> Returns:
        """Scores a policy by the returns of whole games."""
        spec, returns = self.play_spec(settings), []
        env = build_env(spec)
        seeds = np.random.SeedSequence([options.seed, 1]).generate_state(options.episodes)
        try:
            played = self.played(state, settings, spec, env, device=options.device)
            for step in play(played.act, played, seeds.tolist(), name=spec.id):
                if step.is_last:
                    # With the rewards of frames before the policy's first action.
                    returns.append(float(step.info["episode"]["r"]))
                    options.advance(1)
        finally:
            contract.close(env)
        return Returns(tuple(returns))


TASK = PixelsTask()
