"""The environment and the policy of a run in traffic, for films of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.record_episodes import Act
from fastrl.play.team_policy import TeamPolicy
from fastrl.runs.checkpoint import CheckpointError, to_play, using_checkpoint
from fastrl.tasks.traffic.render import RenderError, made
from fastrl.tasks.traffic.task import TASK
from fastrl.training.run import load_run


def run_env(path: Path, options: Mapping[str, Any]) -> tuple[MultiAgentVectorEnv, Act]:
    """The environment of a run in traffic, with some of its options changed, and the policy of the run.

    Args:
        path: a run directory, whose best policy it is if evaluations have found one, else its newest; or a checkpoint.
        options: of the environment, instead of the run's.

    Raises:
        CheckpointError: there is no checkpoint, or one of another kind of run.
        RenderError: the environment refuses an option, or with it the policy does not fit.
    """
    file = to_play(path)
    settings, state = load_run(TASK, file)
    with using_checkpoint(file, "holds no policy that this fastrl can use"):
        policy = TeamPolicy(state["policy"])
    env = made(TASK.team_spec(settings).with_options(options))
    if policy.team.num_agents != env.num_agents and len(policy.team.networks) == 1:
        # One policy for all can drive any number of vehicles.
        policy = TeamPolicy({**policy.team.state(), "policies": list(policy.team.networks) * env.num_agents})
    try:
        return env, policy.act_in(env, action_masks=TASK.has_action_masks(settings))
    except CheckpointError as error:
        raise RenderError(f"{path}: {error}") from None
