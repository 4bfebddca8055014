"""The plan of a recording of many agents."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from fastrl.collectors.action_noise import Noise
from fastrl.collectors.expert import ExpertSpec
from fastrl.collectors.parallel_spec import ParallelSpec
from fastrl.collectors.team_spec import CompiledTeamSpec, TeamSpec
from fastrl.demos.actor import RecordingActor
from fastrl.demos.find_expert import Run, find_team_expert
from fastrl.demos.plan import RecordingPlan
from fastrl.envs.contract import ACTION_MASK
from fastrl.envs.registration import MULTI_AGENT_IDS
from fastrl.envs.spec import EnvSpec, any_spec
from fastrl.play.episodes import EPISODE_STEPS
from fastrl.tasks import find, makes_parallel, named_tasks
from fastrl.utils.config import ConfigError
from fastrl.utils.errors import UserError


def find_team(env: Any, options: Mapping[str, Any], run: Run | None) -> tuple[TeamSpec, int] | None:
    """The environment of many agents to record in, and the steps of its longest episode; None: it is a single agent's.

    An id that is both is a single agent's, unless the expert is a run of many agents.

    Args:
        env, options: as of `fastrl.demos.record`.
        run: that the expert is.
    """
    of_run = None if run is None else run.team()
    if of_run is not None and not options and env in (None, of_run[0].id):
        return of_run
    if isinstance(env, str) and env in named_tasks():
        task = find(env)
        settings = task.resolve_defaults(task.make_settings({}))
        team = task.team_spec(settings)
        return None if team is None else (team.with_options(options), task.play_steps(settings))
    try:
        spec = any_spec(env)
    except TypeError:
        return None
    return team_of(with_env_options(spec, options), prefer_many=of_run is not None)


def with_env_options(spec: EnvSpec, options: Mapping[str, Any]) -> EnvSpec:
    """The spec with options.

    Raises:
        ConfigError: it takes none.
    """
    with_options = spec.with_options(options)
    if options and with_options is spec:
        raise ConfigError(f"env_options: {spec.id} is built already: give the options to what builds it")
    return with_options


def team_of(spec: EnvSpec, *, prefer_many: bool) -> tuple[TeamSpec, int] | None:
    """The environment of many agents that a spec means, and the steps of its longest episode; None: it is a single
    agent's.

    Args:
        prefer_many: an id that is both is of many agents.
    """
    if spec.id in MULTI_AGENT_IDS and (prefer_many or spec.id not in gymnasium.registry):
        return CompiledTeamSpec(spec.id, spec.options), EPISODE_STEPS
    if makes_parallel(spec):
        return ParallelSpec(spec.id, spec=spec), EPISODE_STEPS
    return None


def make_team_plan(
    spec: TeamSpec,
    expert: Any,
    episodes: int,
    *,
    seed: int,
    max_episode_steps: int,
    infos: Sequence[str],
    run: Run | None,
    deterministic: bool,
    make_noise: functools.partial[Noise | None],
) -> tuple[RecordingPlan, ExpertSpec, Noise | None, list[dict[str, str]]]:
    """The plan of a recording of many agents, the expert, its noise, and names and groups of the agents.

    Args:
        expert, infos: as of `fastrl.demos.record`.
        max_episode_steps: of the longest episode.
        run: that the expert is.
        make_noise: makes the noise, given the action space.

    Raises:
        ConfigError: the environment cannot be built, or what cannot be recorded in it.
    """
    if other := [key for key in infos if key != ACTION_MASK]:
        raise ConfigError(
            f"infos: of many agents {ACTION_MASK} can be recorded, got {other[0]!r}: leave it out"
        )
    try:
        with contextlib.closing(spec.make_team(1, workers=1)) as env:
            found = find_team_expert(expert, env, run=run, deterministic=deterministic)
            noise = make_noise(env.single_action_space)
            if noise is not None:
                noise.check(env.single_action_space)
            make_actor = functools.partial(
                RecordingActor,
                found.make,
                found.name,
                None,
                env.single_action_space,
                noise,
                seed,
                episodes,
                num_agents=env.num_agents,
            )
            plan = RecordingPlan(
                spec,
                make_actor,
                env.obs_space,
                env.single_action_space,
                num_envs=1,
                num_steps=max_episode_steps,
                unit="episodes",
                episodes=episodes,
                seed=seed,
                action_masks=found.action_masks or bool(infos),
                num_agents=env.num_agents,
                actor_state=make_actor().state_size,
            )
            agents = [
                {"name": str(name), "group": group}
                for name, group in zip(env.agents, env.groups, strict=True)
            ]
            return plan, found, noise, agents
    except UserError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"--env {spec.id}: {str(error).removeprefix('env: ')}") from None
