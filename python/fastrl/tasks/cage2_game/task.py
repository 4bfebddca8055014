"""CAGE Challenge 2 as a game of two agents: both sides learn, or one against frozen opponents."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fastrl.envs.cage2.game import AGENTS
from fastrl.envs.record_episodes import run_episodes
from fastrl.play.play import team_seeds
from fastrl.runs.settings import RunConfig
from fastrl.tasks import cage2_game
from fastrl.tasks.cage2_game.opponents import GameSpec
from fastrl.tasks.cage2_game.settings import PRESETS, EnvConfig
from fastrl.training.evaluation import Returns
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.training.task import Task

# Games of an evaluation that are stepped together.
BATCH = 1024


class Cage2GameTask(Task):
    """See `fastrl.training.task.Task`."""

    name = cage2_game.NAME
    summary = cage2_game.SUMMARY
    run = RunConfig(algo="ippo", total_timesteps=4_000_000, eval_episodes=200)
    env = EnvConfig()
    presets = PRESETS
    common_options = ("--side", "--opponents")
    rare_options = ("--collector", "--n-workers")
    many_agents = masks_by_default = True

    def description(self, prog: str) -> str:
        return (
            "Trains both sides of CAGE Challenge 2, or one against frozen ones, such as\n"
            f"  {prog} cage2-game\n  {prog} cage2-game --side red --opponents runs/defender"
        )

    def default_presets(self, settings: Any) -> Sequence[str]:
        return PRESETS.presets_for("fastrl/Cage2Game-v0") or ()

    def resolve_defaults(self, settings: Any) -> Any:
        """Each side has a policy of its own."""
        table = self.algorithm_table(settings.run.algo)
        config = getattr(settings, table)
        if settings.env.side != "both" or config.policies or not config.share:
            return settings
        return dataclasses.replace(settings, **{table: dataclasses.replace(config, policies=AGENTS)})

    def team_spec(self, settings: Any) -> GameSpec:
        env: EnvConfig = settings.env
        return GameSpec("fastrl/Cage2Game-v0", env.options(), side=env.side, opponents=env.opponents)

    def play_steps(self, settings: Any) -> int:
        return super().play_steps(settings) or int(settings.env.episode_length)

    def evaluate(self, state: Mapping[str, Any], settings: Any, options: EvaluationOptions) -> Returns:
        """Returns of the side that learned; of both sides those of blue."""
        from fastrl.play.team_policy import TeamPolicy

        policy = TeamPolicy(state["policy"])
        seeds, masks = team_seeds(options.seed, options.episodes), self.has_action_masks(settings)
        returns: list[float] = []
        for start in range(0, options.episodes, BATCH):
            batch = seeds[start : start + BATCH]
            with contextlib.closing(self.make_team(settings, len(batch))) as env:
                if settings.env.side == "both":
                    # The sum of both is 0.
                    env.reward = lambda rewards, *_: rewards.reshape(-1, len(AGENTS))[:, [0, 0]].ravel()
                act = policy.act_in(env, action_masks=masks)
                returns += run_episodes(env, act, batch, options.advance)["return_mean"].tolist()
        return Returns(tuple(returns))


TASK = Cage2GameTask()
