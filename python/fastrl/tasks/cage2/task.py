"""CAGE Challenge 2: a defender against red agents, scored by the challenge's protocol."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastrl.algorithms.protocol import Algorithm, DatasetAlgorithm
from fastrl.envs.cage2.env import RED_AGENTS
from fastrl.envs.cage2.memory import observation_names
from fastrl.envs.spec import EnvSpec
from fastrl.runs.episodes import Episodes
from fastrl.runs.errors import TrainError, check_memory
from fastrl.runs.row import Number
from fastrl.runs.settings import RunConfig
from fastrl.tasks import cage2
from fastrl.tasks.cage2.evaluate import Cage2Scoring, Contender
from fastrl.tasks.cage2.scores import Evaluation
from fastrl.tasks.cage2.settings import PRESETS, EnvConfig
from fastrl.training.callbacks import Callback
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.training.task import Task

if TYPE_CHECKING:
    from rich.console import Console

    from fastrl.play.film import Films
    from fastrl.sources.source import Source


class ReturnsByRedAgent(Callback):
    """Mean returns of episodes against each red agent, in rows of metrics."""

    name = "red_agents"

    def metrics(self, ended: Episodes) -> Mapping[str, Number]:
        if not len(ended):
            return {}
        red_agents = ended.info["red_agent"]
        return {
            f"rollout/ep_rew_mean_{RED_AGENTS[int(i)]}": float(ended.returns[red_agents == i].mean())
            for i in np.unique(red_agents)
        }


class Cage2Task(Cage2Scoring, Task):
    """See `fastrl.training.task.Task`."""

    summary = cage2.SUMMARY
    film = masks_by_default = True
    score_hint = "score it by the challenge's protocol"
    run = RunConfig(total_timesteps=16_000_000, eval_episodes=200)
    env = EnvConfig()
    presets = PRESETS

    def description(self, prog: str) -> str:
        return (
            "Trains a defender of the network of CAGE Challenge 2, such as\n"
            f"  {prog} cage2 --red-agent bline --ruleset leaderboard"
        )

    def algorithm_defaults(self, algorithm: type[Algorithm[Any]]) -> Any:
        config = super().algorithm_defaults(algorithm)
        changes: dict[str, Any] = {}
        if algorithm.name == "ppo":
            # Actions pay off within some 50 steps: a shorter horizon makes advantages less noisy. Smaller minibatches
            # give more gradient steps for the same experience.
            changes |= {"gamma": 0.98, "minibatch_size": 1600}
        if algorithm.name == "pqn":
            # Epsilon-greedy exploration finds no decoys: their gain is far smaller than the errors of values.
            changes |= {
                "gamma": 0.98,
                "td_lambda": 0.95,
                "munchausen": 0.98,
                "reward_scale": 0.3,
                "hidden": (64, 64),
                "num_epochs": 4,
                "minibatch_size": 512,
                "learning_rate": 2e-3,
            }
        return dataclasses.replace(config, **changes)

    def env_spec(self, settings: Any) -> EnvSpec:
        return EnvSpec(settings.env.env_id, settings.env.options())

    def episode_info(self, settings: Any) -> Sequence[str]:
        return ("red_agent",)

    def make_source(self, settings: Any, algorithm: type[Algorithm[Any]], console: Console) -> Source:
        algorithm_settings = self.algorithm_settings(settings)
        if not issubclass(algorithm, DatasetAlgorithm):
            _check_memory(settings, algorithm_settings)
        blue = len(observation_names(settings.env.memory)) if settings.env.observe == "truth" else 0
        if getattr(algorithm_settings, "actor_inputs", 0) not in (0, blue):
            raise TrainError(
                f"actor_inputs {algorithm_settings.actor_inputs}: with --env.observe truth the policy may see what blue"
                f" does, {blue} with --env.memory {settings.env.memory}, or all, 0"
                if blue
                else "actor_inputs: in CAGE 2 it is for --env.observe truth, set it to 0"
            )
        return super().make_source(settings, algorithm, console)

    def callbacks(self, settings: Any, source: Source, console: Console) -> list[Callback]:
        return [ReturnsByRedAgent()]

    def checkpoint_facts(self, settings: Any) -> dict[str, Any]:
        facts: dict[str, Any] = settings.env.action_facts()
        return facts

    def check_weights(self, state: Mapping[str, Any], settings: Any) -> None:
        if state["actions"] != self.checkpoint_facts(settings)["actions"]:
            raise ValueError("it chooses among other actions: env.actions should be the same")

    def evaluate(self, state: Mapping[str, Any], settings: Any, options: EvaluationOptions) -> Evaluation:
        """Scores a policy by the challenge's protocol, in games of the run's rules unless options have others."""
        from fastrl.play.policy import Policy

        policy = Policy(dict(state), device=options.device, seed=options.seed)
        contender = Contender.from_policy(policy, "the policy", deterministic=options.mode == "deterministic")
        env = settings.env
        return self._evaluate(contender, options, env.ruleset, scenario=env.scenario, rows=env.rows)

    def agent_films(self, path: str, settings: Any) -> Films:
        """See `Task.agent_films`; the agent observes and acts as `Contender.from_agent` says."""
        from fastrl.play.film import agent_films

        options = {**settings.env.options(), "memory": "none", "observe": "blue", "actions": None}
        num_actions = self.checkpoint_facts(settings)["num_actions"]
        return agent_films(path, EnvSpec("fastrl/Cage2-v0", options), self.play_steps(settings), num_actions)

    def scores_from_tree(self, tree: Mapping[str, Any]) -> Evaluation:
        return Evaluation.from_tree(tree)


def _check_memory(settings: Any, algorithm: Any) -> None:
    """Refuses sizes for which the system would kill the process for its memory.

    Raises:
        TrainError
    """
    num_actions = len(settings.env.action_facts()["actions"])
    if settings.env.rows is not None:
        from fastrl.envs.cage2.rows import ROW  # what other games do not need

        obs_dim = settings.env.rows * len(ROW)
    else:
        where = settings.env.own_scenario()
        obs_dim = len(observation_names(settings.env.memory, settings.env.observe, where))
    # Bytes of a step: an observation, perhaps a mask, and ten numbers.
    row = 4 * obs_dim + (num_actions if getattr(algorithm, "action_masks", False) else 0) + 40
    sizes = [obs_dim, *getattr(algorithm, "hidden", ()), num_actions]
    # Actor and critic; weights, gradients and Adam's two moments, of 4 bytes each.
    network = 2 * 16 * sum(a * b for a, b in itertools.pairwise(sizes))
    # Sources of transitions refuse a replay that is too large by themselves.
    replay = getattr(settings, "replay", None)
    num_steps = getattr(algorithm, "num_steps", 0) or (1 if replay is None else replay.train_freq)
    needed = row * settings.env.num_envs * num_steps + network
    advice = "a smaller --num-envs, or fewer steps or smaller hidden layers of the algorithm"
    check_memory(needed, "this takes at least", advice)


TASK = Cage2Task()
