"""The experience of a search for the best workflow: episodes of all workflows, then those of the search's trainings."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastrl.algorithms.protocol import Algorithm, Problem
from fastrl.collectors.protocol import Plan, Report
from fastrl.collectors.synchronous import LockstepCollector, native_collector
from fastrl.envs.cage2.workflow import (
    WORKFLOWS,
    Cage2WorkflowVectorEnv,
    Workflow,
    parse_workflow,
)
from fastrl.envs.spec import EnvSpec
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.distributions import mask_logits
from fastrl.rollout.fragment import Fragment
from fastrl.runs.episodes import Episodes
from fastrl.runs.metrics import mean_and_error
from fastrl.runs.row import Number
from fastrl.sources.source import Source
from fastrl.tasks.cage2.evaluate import Act, run_episodes
from fastrl.tasks.workflow.learner import WorkflowPPO, seeds_of
from fastrl.tasks.workflow.outcome import Outcome
from fastrl.tasks.workflow.search import Proposal, Search
from fastrl.tasks.workflow.settings import EnvConfig, InnerConfig
from fastrl.tasks.workflow.strategies import make_search
from fastrl.utils.timer import Stopwatch

ENV_ID = "fastrl/Cage2Workflow-v0"


@dataclass(frozen=True)
class BestPolicy:
    """Policy of the best workflow, from after its best training.

    Attributes:
        outcome: of that training.
        policy: a network over the game's observations, of `WorkflowPPO.policy_of`.
    """

    outcome: Outcome
    policy: dict[str, Any]


class WorkflowSource(Source):
    """Brings an episode of every environment for each update, of the workflows that learn next.

    First those are all workflows together. Then a search proposes one training after the other: as many whole updates
    as leave ``measured_episodes`` for a measurement of the policy, which takes the most probable actions; shorter ones
    only measure. Each policy is measured in the same episodes, so that outcomes differ by policies and not by
    opponents' draws.

    Args:
        inner: settings of learning.
        games: settings of the environments.
        search: proposes trainings.
        joint_episodes: of all workflows together, a multiple of ``episodes_per_update``.
        seed: of everything random, not negative.

    Attributes:
        episodes: so far, measured ones included.
        best: the best policy so far; None while no workflow counts.

    Raises:
        ValueError: workflows with separate networks are to learn together, or ``joint_episodes`` is no such multiple.
    """

    collector = "native"
    env_id = ENV_ID
    _algorithm: WorkflowPPO
    _collector: LockstepCollector

    def __init__(
        self, inner: InnerConfig, games: EnvConfig, search: Search, *, joint_episodes: int, seed: int
    ) -> None:
        if joint_episodes and inner.networks == "separate":
            raise ValueError("each workflow has a network of its own: train one at a time")
        if joint_episodes % inner.episodes_per_update:
            raise ValueError(
                f"joint_episodes: expected a multiple of {inner.episodes_per_update}, got {joint_episodes}"
            )
        self.inner, self.games, self.search = inner, games, search
        self.joint_episodes, self.seed = joint_episodes, seed
        self.episode_steps = games.episode_length
        self.episodes = 0
        self.best: BestPolicy | None = None
        self._env = games.make(inner.episodes_per_update, compliance_weight=inner.compliance_weight)
        # Index of the first workflow of the next update of all together: there may be more of them than environments.
        self._turn = 0
        # Updates of the present training so far.
        self._made = 0
        # Episodes since the trainer last took them, and those of the next row.
        self._ended: list[Episodes] = []
        self._of_row: list[Episodes] = []

    @property
    def steps(self) -> int:
        return self.episodes * self.episode_steps

    @property
    def is_over(self) -> bool:
        """True if all episodes are used up."""
        return self.episodes >= self.joint_episodes + self.search.total_episodes

    def problem(self, total_timesteps: int, seed: int) -> Problem:
        env = self._env
        return Problem(
            env.single_observation_space,
            env.single_action_space,
            env.num_envs,
            max(total_timesteps, 1),
            seed=seed,
        )

    def attach(self, algorithm: Algorithm[Any]) -> None:
        assert isinstance(algorithm, WorkflowPPO), "it has the networks of workflows"
        self._algorithm = algorithm
        self._weights = np.zeros(algorithm.weights_nbytes, np.uint8)
        env = self._env
        plan = Plan(
            EnvSpec(ENV_ID),
            algorithm.actor_spec(),
            env.single_observation_space,
            env.single_action_space,
            num_envs=env.num_envs,
            num_steps=self.episode_steps,
            seed=self.seed,
            action_masks=self.inner.action_masks,
        )
        self._collector = native_collector(plan, env=env)

    def next(self, watch: Stopwatch) -> list[Fragment] | None:
        """See `Source.next`; None after a measurement."""
        num_envs = self._env.num_envs
        if self.episodes < self.joint_episodes:
            turns = (self._turn + np.arange(num_envs)) % len(WORKFLOWS)
            self._turn = (self._turn + num_envs) % len(WORKFLOWS)
            return self._collect(np.array(WORKFLOWS, np.int8)[turns], watch)
        proposal = self.search.ask()
        assert proposal is not None, "the run is over"
        workflow = proposal.workflow
        self._algorithm.activate(workflow, proposal.warm_start)
        updates = max(proposal.episodes - self.inner.measured_episodes, 0) // num_envs
        if self._made < updates:
            self._made += 1
            return self._collect(np.array([workflow] * num_envs, np.int8), watch)
        self._made = 0
        with watch("evaluation"):
            self._measure(proposal, proposal.episodes - updates * num_envs)
        return None

    def _collect(self, orders: NDArray[np.int8], watch: Stopwatch) -> list[Fragment]:
        """An episode of every environment, each with its own workflow."""
        self._env.set_workflows(orders)
        self._collector.refresh_observations()
        with watch("publishing"):
            self._algorithm.write_weights(self._weights)
            self._collector.publish(self._weights)
        with watch("waiting"):
            fragments = self._collector.collect()
        # Measured episodes count for schedules, too.
        self._algorithm.steps = self.steps
        self._add(self._env.episodes())
        return fragments

    def _measure(self, proposal: Proposal, episodes: int) -> None:
        """Measures a policy at the end of its training, and tells the search."""
        workflow = proposal.workflow
        policy = self._algorithm.policy_of(workflow)
        facts = measured(
            self.games, workflow, policy, episodes, self.seed, action_masks=self.inner.action_masks
        )
        self._add(facts)
        outcome = Outcome.measured(workflow, proposal.episodes, facts["return"], facts["compliance"])
        self.search.tell(outcome)
        best, standing = self.best, self.search.best()
        if standing is None:
            self.best = None
        elif best is None or best.outcome.workflow != standing.workflow:
            self.best = BestPolicy(standing.outcome, self._algorithm.policy_of(standing.workflow))
        elif workflow == standing.workflow and outcome.mean_return >= best.outcome.mean_return:
            self.best = BestPolicy(outcome, policy)

    def _add(self, facts: Mapping[str, NDArray[Any]]) -> None:
        """Counts episodes that have ended."""
        returns = facts["return"]
        lengths = np.full(len(returns), self.episode_steps, np.int64)
        steps = np.full(len(returns), self.steps, np.int64)
        ended = Episodes(returns, lengths, steps, {"compliance": facts["compliance"]})
        self.episodes += len(ended)
        self._ended.append(ended)
        self._of_row.append(ended)

    def chosen(self) -> BestPolicy | None:
        """The best policy, or if no workflow counts that of the most compliant one; None before one was tried."""
        standing = self.search.most_compliant()
        if self.best is not None or standing is None:
            return self.best
        return BestPolicy(standing.outcome, self._algorithm.policy_of(standing.workflow))

    def take_episodes(self) -> Episodes:
        ended, self._ended = self._ended, []
        return Episodes.concatenated(ended)

    def report(self) -> Report:
        return self._collector.report()

    def metrics(self) -> Mapping[str, Number]:
        ended, self._of_row = Episodes.concatenated(self._of_row), []
        standings, best = self.search.standings(), self.best
        _, return_stderr = mean_and_error(ended.returns)
        compliance, compliance_stderr = mean_and_error(ended.info["compliance"])
        return {
            "rollout/ep_rew_stderr": return_stderr,
            "rollout/compliance": compliance,
            "rollout/compliance_stderr": compliance_stderr,
            "search/trainings": len(self.search.outcomes),
            "search/tried": len(standings),
            "search/counting": sum(standing.counts for standing in standings),
            "search/best_return": np.nan if best is None else best.outcome.mean_return,
            "search/best_compliance": np.nan if best is None else best.outcome.compliance,
            "search/best_workflow": -1 if best is None else WORKFLOWS.index(best.outcome.workflow),
        }

    def state_dict(self) -> dict[str, Any]:
        best = self.best
        return {
            "episodes": self.episodes,
            "turn": self._turn,
            "made": self._made,
            # Number of the next episode of each environment; no episode runs between updates.
            "numbers": torch.tensor(list(self._collector.state_dict()["numbers"].values())),
            "search": self.search.state_dict(),
            "best": None if best is None else {"outcome": best.outcome.to_tree(), "policy": best.policy},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        episode_numbers = dict(enumerate(state["numbers"].tolist()))
        self._collector.load_state_dict({"numbers": episode_numbers, "running": {}, "version": 0})
        self.episodes, self._turn, self._made = state["episodes"], state["turn"], state["made"]
        self.search.load_state_dict(state["search"])
        best = state["best"]
        self.best = None if best is None else BestPolicy(Outcome.from_tree(best["outcome"]), best["policy"])


def source_of(settings: Any) -> WorkflowSource:
    """The source of a run with these settings.

    Raises:
        ConfigError: too few episodes for the search.
    """
    run, inner, given = settings.run, settings.inner, settings.search.workflow
    per_update = inner.episodes_per_update
    share = inner.pretrain_share if inner.networks == "shared" and given is None else 0.0
    joint_episodes = int(share * run.total_episodes) // per_update * per_update
    shortest = per_update + inner.measured_episodes
    search = make_search(
        settings.search,
        WORKFLOWS if given is None else [parse_workflow(given)],
        run.total_episodes - joint_episodes,
        # After the joint training a trial of a shared network is a measurement.
        min_episodes=inner.measured_episodes if joint_episodes else shortest,
        min_learning_episodes=shortest,
        seed=run.seed,
    )
    return WorkflowSource(inner, settings.env, search, joint_episodes=joint_episodes, seed=run.seed)


def measured(
    games: EnvConfig,
    workflow: Workflow,
    policy_state: dict[str, Any],
    episodes: int,
    seed: int,
    *,
    action_masks: bool,
) -> Mapping[str, NDArray[Any]]:
    """Facts of a policy's episodes without exploration, such as "return" and "compliance", [E] each.

    Args:
        games: settings of the environments.
        workflow: by which compliance is measured.
        policy_state: of `WorkflowPPO.policy_of`, or of a policy that does not observe workflows.
        episodes: one for each of the seeds that ``seed`` gives.
        action_masks: it chooses among the actions that may have an effect.
    """
    network = ActorCritic.from_state(policy_state).eval()

    def make_act(env: Cage2WorkflowVectorEnv, first: int) -> Act:
        def act(obs: NDArray[np.float32]) -> NDArray[np.int64]:
            masks = torch.from_numpy(env.action_masks()) if action_masks else None
            with torch.inference_mode():
                outputs = network.outputs(torch.from_numpy(obs[:, : network.obs_dim].copy()))
                return mask_logits(outputs, masks).argmax(-1).numpy()

        return act

    make_env = partial(games.make, workflow=workflow)
    seeds = seeds_of(seed, episodes + 1)[1:]
    return run_episodes(make_env, make_act, seeds, facts=Cage2WorkflowVectorEnv.episodes)


def measure(games: EnvConfig, workflow: Workflow, *arguments: Any, **options: Any) -> Outcome:
    """The outcome of a policy, with the arguments of `measured`."""
    facts = measured(games, workflow, *arguments, **options)
    return Outcome.measured(workflow, len(facts["return"]), facts["return"], facts["compliance"])
