"""Any parallel environment of PettingZoo: no protocol of its own, scores are mean returns of the agents."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from fastrl.collectors.parallel_spec import ParallelSpec, blaming
from fastrl.collectors.team_spec import TeamSpec
from fastrl.envs.adapters.parallel_frames import make_parallel
from fastrl.envs.record_episodes import Act, run_episodes
from fastrl.envs.spec import EnvSpec
from fastrl.play.play import team_seeds
from fastrl.runs.errors import TrainError
from fastrl.runs.settings import RunConfig
from fastrl.tasks import pettingzoo
from fastrl.tasks.opponents import opposed
from fastrl.tasks.pettingzoo.settings import PRESETS, EnvConfig
from fastrl.training.evaluation import Returns
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.training.task import Task
from fastrl.utils.env_options import parse_options
from fastrl.utils.video import draw_without_display

if TYPE_CHECKING:
    from fastrl.play.film import Films


class PettingZooTask(Task):
    """See `fastrl.training.task.Task`."""

    name = pettingzoo.NAME
    summary = pettingzoo.SUMMARY
    run = RunConfig(algo="ippo")
    env = EnvConfig()
    common_options = ("--learners", "--opponents")
    presets = PRESETS
    many_agents = True

    def description(self, prog: str) -> str:
        return (
            "Trains on any parallel environment of PettingZoo, such as\n"
            f"  {prog} mpe2.simple_spread_v3:parallel_env --algo mappo"
        )

    def default_presets(self, settings: Any) -> Sequence[str]:
        return PRESETS.presets_for(settings.env.id) or ()

    def env_spec(self, settings: Any) -> EnvSpec:
        options = parse_options(settings.env.options)
        return EnvSpec(settings.env.id, options) if self.spec is None else self.spec.with_options(options)

    def team_spec(self, settings: Any) -> TeamSpec:
        env, spec = settings.env, self.env_spec(settings)
        whole = ParallelSpec(
            spec.id,
            spec=spec,
            size=env.size,
            stack=env.stack,
            max_episode_steps=env.max_episode_steps,
        )
        return opposed(whole, self.name, env)

    def team_env(self, settings: Any) -> Any:
        if settings.env.learners:
            from fastrl.envs.adapters.pettingzoo import PettingZooEnv

            return PettingZooEnv(self.make_team(settings, 1, AutoresetMode.DISABLED))
        spec = self.env_spec(settings)
        try:
            with blaming(f"--env {spec.id}: it could not be built"):
                return make_parallel(spec, settings.env.size, settings.env.stack)
        except (ValueError, TypeError) as error:
            raise TrainError(str(error)) from None

    def play_steps(self, settings: Any) -> int:
        return int(settings.env.max_episode_steps)

    def films(self, settings: Any) -> Films:
        from fastrl.play.film import FPS, team_films
        from fastrl.play.team_policy import TeamPolicy

        spec = self.env_spec(settings)
        drawing = dataclasses.replace(spec, options={**spec.options, "render_mode": "rgb_array"})
        built: list[Any] = []
        draw_without_display()

        def make() -> Any:
            built.append(make_parallel(drawing, settings.env.size, settings.env.stack))
            return built[0]

        env = self.make_team(settings, 1, AutoresetMode.DISABLED, make=make)
        drawn, metadata = built[0], getattr(built[0], "metadata", {})
        if getattr(drawn, "render_mode", None) != "rgb_array":
            modes = ", ".join(metadata.get("render_modes", ())) or "none"
            env.close()
            raise TrainError(
                f"{env.name} has no render mode rgb_array, so there is nothing to film; its modes: {modes}"
            )

        def acting(state: Mapping[str, Any]) -> Act:
            return TeamPolicy(state["policy"]).act_in(env, action_masks=self.has_action_masks(settings))

        return team_films(env, acting, draw=drawn.render, fps=float(metadata.get("render_fps") or FPS))

    def resolve_defaults(self, settings: Any) -> Any:
        """Agents of other spaces have policies of their own."""
        table = self.algorithm_table(settings.run.algo)
        config = getattr(settings, table)
        if config.policies or not config.share:
            return settings
        env = self.make_team(settings, 1)
        env.close()
        if len(set(env.groups)) == 1:
            return settings
        return dataclasses.replace(settings, **{table: dataclasses.replace(config, policies=env.groups)})

    def evaluate(self, state: Mapping[str, Any], settings: Any, options: EvaluationOptions) -> Returns:
        from fastrl.play.team_policy import TeamPolicy

        policy = TeamPolicy(state["policy"])
        seeds, masks = team_seeds(options.seed, options.episodes), self.has_action_masks(settings)
        returns: list[float] = []
        for start in range(0, options.episodes, settings.env.num_envs):
            batch = seeds[start : start + settings.env.num_envs]
            with contextlib.closing(self.make_team(settings, len(batch))) as env:
                act = policy.act_in(env, action_masks=masks)
                returns += run_episodes(env, act, batch, options.advance)["return_mean"].tolist()
        return Returns(tuple(returns))


TASK = PettingZooTask()
