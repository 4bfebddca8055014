"""Inner learner of a search for the best workflow: PPO that defends CAGE 2 and complies with workflows.

::

    learner = WorkflowLearner(InnerConfig(), EnvConfig(), total_episodes=200_000, seed=0)
    learner.train(WORKFLOWS, 102_400)              # a shared network first learns all workflows together
    outcome = learner.train_one(workflow, 2_000)   # then concentrates on one
    state = learner.policy_state(workflow)         # a plain network over the challenge's 52 bits

A network is conditioned on the workflow: it observes the 52 bits and the order's code. For one workflow it is folded to
a policy like any other of CAGE 2, see `fastrl.tasks.workflow.folding`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.protocol import Plan, Report
from fastrl.collectors.synchronous import LockstepCollector, native_collector
from fastrl.envs.cage2.workflow import (
    WORKFLOWS,
    Cage2WorkflowVectorEnv,
    Workflow,
    check_workflow,
    parse_workflow,
    workflow_name,
)
from fastrl.envs.spec import EnvSpec
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.distributions import mask_logits
from fastrl.tasks.cage2.evaluate import Act, run_episodes
from fastrl.tasks.workflow.folding import fold, unfold
from fastrl.tasks.workflow.outcome import Outcome
from fastrl.tasks.workflow.settings import EnvConfig, InnerConfig
from fastrl.utils.timer import Stopwatch

ENV_ID = "fastrl/Cage2Workflow-v0"


class WorkflowLearner:
    """Trains networks on workflows, one episode of every environment between updates.

    Learning rate and entropy bonus fall linearly from the first episode of ``total_episodes`` to the last, whichever
    workflows are trained. Everything random comes from ``seed``, and each policy is measured in the same episodes, so
    that outcomes differ by policies and not by opponents' draws.

    Args:
        config: settings.
        games: settings of the environments.
        total_episodes: over which schedules run. After more the final values hold.
        seed: not negative.
        device: where the networks live, "cpu" or "cuda".

    Attributes:
        episodes: so far, measured ones included.
        updates: of the networks so far.
        min_episodes: `train_one` learns nothing from fewer.
        watch: seconds of all, by the parts of `PPO`, "waiting" for the collector and "evaluation".
        on_update: called after every update.
        should_stop: asked after every update; once it says so, trainings stop there.
    """

    def __init__(
        self,
        config: InnerConfig,
        games: EnvConfig,
        *,
        total_episodes: int,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.config = config
        self.games = games
        self.total_episodes = total_episodes
        self.seed = seed
        self.device = device
        self.episodes = self.updates = 0
        self.min_episodes = config.episodes_per_update + config.measured_episodes
        self.watch = Stopwatch()
        self.on_update: Callable[[], object] = lambda: None
        self.should_stop: Callable[[], bool] = lambda: False
        self._env = self.games.make(config.episodes_per_update, compliance_weight=config.compliance_weight)
        self._ppo = self._new_ppo(seed)
        self._collector = self._new_collector()
        self._weights = np.zeros(self._ppo.weights_nbytes, np.uint8)
        # With separate networks: the workflow whose network learns, and the states of the other networks.
        self._active: Workflow | None = None
        self._inactive: dict[Workflow, dict[str, Any]] = {}
        # Index of the first workflow of the next update, if there are more workflows than environments.
        self._turn = 0
        # Updates that a training of one workflow had made when it was stopped.
        self._made = 0

    def _new_ppo(self, seed: int) -> PPO:
        return PPO(
            self.config.ppo(self.games.episode_length),
            Problem(
                self._env.single_observation_space,
                self._env.single_action_space,
                self._env.num_envs,
                total_timesteps=max(self.total_episodes * self.games.episode_length, 1),
                seed=seed,
                device=self.device,
            ),
        )

    def _new_collector(self) -> LockstepCollector:
        """Collects an episode of every environment for each update."""
        plan = Plan(
            EnvSpec(ENV_ID),
            self._ppo.actor_spec(),
            self._env.single_observation_space,
            self._env.single_action_space,
            num_envs=self._env.num_envs,
            num_steps=self.games.episode_length,
            seed=self.seed,
            action_masks=self.config.action_masks,
        )
        return native_collector(plan, env=self._env)

    def report(self) -> Report:
        """Account of the collector since this session started."""
        return self._collector.report()

    def train(self, workflows: Sequence[Workflow], episodes: int) -> list[Outcome]:
        """Trains the shared network on workflows together: environments are divided evenly among them.

        Args:
            workflows: the orders.
            episodes: in all, a multiple of ``episodes_per_update``; fewer if `should_stop` says so.

        Returns:
            The outcome of each, over the second half of the episodes that it was trained on, with exploration; NaN for
            a workflow that had no episode.

        Raises:
            ValueError: networks are separate and there are several workflows, or ``episodes`` is no such multiple.
        """
        if self.config.networks == "separate":
            if len(workflows) > 1:
                raise ValueError("each workflow has a network of its own: train one at a time")
            self._activate(check_workflow(workflows[0]), None)
        num_envs = self._env.num_envs
        if episodes % num_envs:
            raise ValueError(f"episodes: expected a multiple of {num_envs}, got {episodes}")
        orders = np.array([check_workflow(workflow) for workflow in workflows], np.int8)
        facts: list[dict[str, NDArray[Any]]] = []
        counts = np.zeros(len(orders), np.int64)
        for _ in range(episodes // num_envs):
            turns = (self._turn + np.arange(num_envs)) % len(orders)
            self._turn = (self._turn + num_envs) % len(orders)
            self.update(orders[turns])
            counts += np.bincount(turns, minlength=len(orders))
            facts.append(self._env.episodes())
            if self.should_stop():
                break
        facts = facts[len(facts) // 2 :]
        return [
            _training_outcome(tuple(map(int, order)), int(count), facts)
            for order, count in zip(orders, counts, strict=True)
        ]

    def update(self, orders: NDArray[np.int8]) -> None:
        """Collects an episode of every environment, and learns from them."""
        self._env.set_workflows(orders)
        self._collector.refresh_observations()
        with self.watch("publishing"):
            self._ppo.write_weights(self._weights)
            self._collector.publish(self._weights)
        with self.watch("waiting"):
            fragments = self._collector.collect()
        self._ppo.steps = self.episodes * self.games.episode_length
        self._ppo.update(fragments, self.watch)
        self.episodes += self._env.num_envs
        self.updates += 1
        self.on_update()

    def train_one(
        self, workflow: Workflow, episodes: int, warm_start: Workflow | None = None
    ) -> Outcome | None:
        """Trains on a workflow and measures its policy.

        As many whole updates are made as leave ``measured_episodes`` of ``episodes`` for the measurement, which takes
        the most probable actions; with fewer than ``min_episodes`` the policy is only measured.

        Args:
            workflow: the order.
            episodes: in all, at least 1.
            warm_start: with separate networks, where this workflow has none yet: start with the network of that one.

        Returns:
            The outcome; None if `should_stop` has stopped it. The next call, with the same arguments, continues there.

        Raises:
            ValueError: an invalid order, no episodes, or a warm start from a workflow without a network.
        """
        workflow = check_workflow(workflow)
        if episodes < 1:
            raise ValueError(f"episodes: expected at least 1, got {episodes}")
        self._activate(workflow, warm_start)
        num_envs = self._env.num_envs
        updates = max(episodes - self.config.measured_episodes, 0) // num_envs
        before = self.updates
        self.train([workflow], (updates - self._made) * num_envs)
        self._made += self.updates - before
        if self._made < updates:
            return None
        self._made = 0
        left = episodes - updates * num_envs
        with self.watch("evaluation"):
            outcome = measure(
                self.games,
                workflow,
                self.policy_state(workflow),
                left,
                self.seed,
                action_masks=self.config.action_masks,
            )
        self.episodes += left
        return replace(outcome, episodes=episodes)

    def policy_state(self, workflow: Workflow) -> dict[str, Any]:
        """The policy of a workflow as a network over the game's observations alone, see `fold`. A copy.

        Raises:
            ValueError: networks are separate and this workflow has none yet.
        """
        workflow = check_workflow(workflow)
        if self.config.networks == "shared" or workflow == self._active:
            return fold(self._ppo.policy_state(), workflow)
        return fold(self._inactive_network(workflow)["policy"], workflow)

    def _inactive_network(self, workflow: Workflow) -> dict[str, Any]:
        if workflow not in self._inactive:
            raise ValueError(f"workflow {workflow_name(workflow)} has no network yet: train it first")
        return self._inactive[workflow]

    def _activate(self, workflow: Workflow, warm_start: Workflow | None) -> None:
        """Makes the workflow's network the one that learns, where each workflow has one."""
        if self.config.networks == "shared" or workflow == self._active:
            return
        if self._active is not None:
            self._inactive[self._active] = _network_state(self._ppo)
        if workflow not in self._inactive:
            (seed,) = _seeds(self.seed, 1, WORKFLOWS.index(workflow))
            new = _network_state(self._new_ppo(seed))
            if warm_start is not None:
                other = self._inactive_network(check_workflow(warm_start))
                policy = unfold(fold(other["policy"], warm_start))
                new |= {"policy": policy, "return_scale": other["return_scale"]}
            self._inactive[workflow] = new
        self._ppo.load_state_dict(self._ppo.state_dict() | self._inactive.pop(workflow))
        self._active = workflow

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, for a checkpoint: tensors and plain values. Call it between updates."""
        return {
            "episodes": self.episodes,
            "updates": self.updates,
            "turn": self._turn,
            "made": self._made,
            # Number of the next episode of each environment; no episode runs between updates.
            "numbers": torch.tensor(list(self._collector.state_dict()["numbers"].values())),
            "ppo": _copy(self._ppo.state_dict()),
            "active": None if self._active is None else workflow_name(self._active),
            "inactive": {workflow_name(workflow): state for workflow, state in self._inactive.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes exactly where the learner stood that gave the state; it had the same settings.

        Raises:
            ValueError: it had others.
        """
        self._ppo.load_state_dict(state["ppo"])
        self._collector.close()
        self._collector = self._new_collector()
        numbers = dict(enumerate(state["numbers"].tolist()))
        self._collector.load_state_dict({"numbers": numbers, "running": {}, "version": 0})
        self.episodes, self.updates = state["episodes"], state["updates"]
        self._turn, self._made = state["turn"], state["made"]
        self._active = None if state["active"] is None else parse_workflow(state["active"])
        self._inactive = {parse_workflow(name): network for name, network in state["inactive"].items()}


def measure(
    games: EnvConfig,
    workflow: Workflow,
    policy_state: dict[str, Any],
    episodes: int,
    seed: int,
    *,
    action_masks: bool,
) -> Outcome:
    """The outcome of a policy without exploration.

    Args:
        games: settings of the environments.
        workflow: by which compliance is measured.
        policy_state: of `fold`, or of a policy that does not observe workflows.
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
    seeds = _seeds(seed, episodes + 1)[1:]
    facts = run_episodes(make_env, make_act, seeds, facts=Cage2WorkflowVectorEnv.episodes)
    return Outcome.measured(workflow, episodes, facts["return"], facts["compliance"])


def _training_outcome(
    workflow: Workflow, episodes: int, facts: Sequence[Mapping[str, NDArray[Any]]]
) -> Outcome:
    """The outcome of ``episodes``, from the facts of those that were of the workflow."""
    rows = [(each["workflow"] == workflow).all(axis=1) for each in facts]
    returns, compliance = (
        np.concatenate([np.empty(0), *(each[key][row] for each, row in zip(facts, rows, strict=True))])
        for key in ("return", "compliance")
    )
    if not len(returns):
        return Outcome(workflow, episodes, *[math.nan] * 4)
    return Outcome.measured(workflow, episodes, returns, compliance)


def _network_state(ppo: PPO) -> dict[str, Any]:
    """The part of PPO's state that each network has for itself. A copy."""
    state = ppo.state_dict()
    return {key: _copy(state[key]) for key in ("policy", "optimizer", "return_scale")}


def _copy(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _copy(value) for key, value in state.items()}
    return state.clone() if isinstance(state, Tensor) else state


def _seeds(seed: int, count: int, *path: int) -> list[int]:
    """Seeds of 64 bits, different for each path."""
    return [int(word) for word in np.random.SeedSequence([seed, *path]).generate_state(count, np.uint64)]
