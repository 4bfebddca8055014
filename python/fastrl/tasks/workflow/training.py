"""The inner learner of a search for the best workflow: PPO that defends CAGE 2 while it keeps to workflows.

::

    trainer = WorkflowTrainer(InnerConfig(), Games(), total_episodes=200_000, seed=0)
    trainer.train(WORKFLOWS, 102_400)              # a shared network first learns all workflows together
    outcome = trainer.play(workflow, 2_000)        # then concentrates on one
    state = trainer.policy_state(workflow)         # a plain network over the challenge's 52 bits

A network is conditioned on the workflow: it sees the 52 bits and the order's code. For one workflow the code is
constant, so its weights are folded into the first layer's biases; what is left is a policy like any other of CAGE 2.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fastrl.algorithms.ppo import PPO, PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.protocol import Plan
from fastrl.collectors.synchronous import LockstepCollector, native_collector
from fastrl.envs.cage2.env import RedAgent, Ruleset
from fastrl.envs.cage2.workflow import (
    WORKFLOW_LEN,
    WORKFLOWS,
    Cage2WorkflowVectorEnv,
    Workflow,
    check_workflow,
    encode,
    workflow_name,
)
from fastrl.envs.spec import EnvSpec
from fastrl.networks.actor_critic import Activation, ActorCritic
from fastrl.networks.compiled_actor import MlpActor
from fastrl.networks.distributions import sample_actions
from fastrl.training.collecting import Publisher, spent
from fastrl.utils.config import Setting, section
from fastrl.utils.timer import Stopwatch

# Games that are measured at a time: enough to be fast, few enough to stay in caches.
_BATCH = 1024


@section
class InnerConfig:
    """How policies learn to defend by a workflow: PPO with the compliance in its reward."""

    network: Annotated[
        Literal["shared", "separate"],
        Field(
            description="shared: one network for all workflows, which observes the order; separate: one for each"
        ),
    ] = "shared"
    pretrain_share: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="share of all episodes in which a shared network first learns all workflows together",
        ),
    ] = 0.4
    compliance_weight: Annotated[
        float, Field(ge=0, le=1e6, description="what full compliance is worth in an episode's reward")
    ] = 3.0
    episodes_per_update: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="games played at a time, one episode of each an update"),
        Setting(option="--episodes-per-update", common=True),
    ] = 256
    measured_episodes: Annotated[
        int,
        Field(
            ge=2, description="least episodes of each training that are played to measure, without learning"
        ),
    ] = 200
    hidden: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(description="widths of the hidden layers of actor and critic, each of which has its own"),
    ] = (64, 64)
    activation: Annotated[Activation, Field(description="after each hidden layer")] = "relu"
    learning_rate: Annotated[float, Field(ge=0, description="Adam's, at the start")] = 3e-3
    final_learning_rate: Annotated[
        float, Field(ge=0, description="the same once all episodes of the search are spent")
    ] = 1e-4
    entropy_coef: Annotated[float, Field(ge=0, description="weight of the entropy bonus at the start")] = 0.01
    final_entropy_coef: Annotated[float, Field(ge=0, description="the same at the end")] = 0.001
    num_epochs: Annotated[int, Field(ge=1, description="passes over the episodes of an update")] = 3
    minibatch_size: Annotated[int, Field(ge=1, description="at most this many samples a gradient step")] = (
        4096
    )
    gamma: Annotated[float, Field(ge=0, le=1, description="discount of future rewards")] = 0.99
    gae_lambda: Annotated[float, Field(ge=0, le=1, description="of advantage estimation")] = 0.95
    clip_range: Annotated[float, Field(gt=0, description="of the probability ratio")] = 0.2

    def ppo(self, num_steps: int) -> PPOConfig:
        """The settings of the learner that they amount to, for rollouts of so many steps."""
        return PPOConfig(
            num_steps=num_steps,
            num_epochs=self.num_epochs,
            minibatch_size=self.minibatch_size,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            clip_range=self.clip_range,
            learning_rate=self.learning_rate,
            final_learning_rate=self.final_learning_rate,
            entropy_coef=self.entropy_coef,
            final_entropy_coef=self.final_entropy_coef,
            hidden=self.hidden,
            activation=self.activation,
        )


@dataclass(frozen=True)
class Games:
    """The games that are played, as `Cage2WorkflowVectorEnv` names their options."""

    ruleset: Ruleset = "main"
    red_agent: RedAgent = "mix"
    episode_length: int = 100
    scan_memory: bool = False
    actions: Literal["effective"] | tuple[int, ...] | None = "effective"
    num_threads: int = 0

    def make(self, num_envs: int, **options: Any) -> Cage2WorkflowVectorEnv:
        """So many of them, with other options on top."""
        return Cage2WorkflowVectorEnv(num_envs, **(vars(self) | options))


@dataclass(frozen=True)
class Outcome:
    """What came of a workflow.

    Attributes:
        workflow: the order.
        episodes: that it took, trained on or measured.
        mean_return: of the game, nothing added for compliance.
        return_stderr: its standard error; NaN of a single episode.
        compliance: mean over episodes.
        compliance_stderr: its standard error; NaN of a single episode.
    """

    workflow: Workflow
    episodes: int
    mean_return: float
    return_stderr: float
    compliance: float
    compliance_stderr: float


def measured(
    workflow: Workflow, episodes: int, returns: NDArray[np.float64], compliance: NDArray[np.float64]
) -> Outcome:
    """The outcome of ``episodes``, of which some, float64 [E], were measured."""
    root = math.sqrt(len(returns))
    return_error, compliance_error = (
        float(values.std(ddof=1)) / root if len(values) > 1 else math.nan for values in (returns, compliance)
    )
    return Outcome(
        workflow, episodes, float(returns.mean()), return_error, float(compliance.mean()), compliance_error
    )


class WorkflowTrainer:
    """Trains networks on workflows, one episode of every game between updates.

    Learning rate and entropy bonus fall linearly from the first episode of ``total_episodes`` to the last, whatever
    is trained when. Everything random comes from ``seed``, and each policy is measured on the same games, so that
    outcomes differ by what the policies do rather than by luck.

    Args:
        config: settings.
        games: that are played.
        total_episodes: the budget. More may be played; the final learning rate holds then.
        seed: not negative.
        device: where the networks live, "cpu" or "cuda".

    Attributes:
        episodes: played so far, measured ones included.
        least: `play` wants at least so many to learn anything.
        watch: seconds spent in all, on the parts of `PPO` and on ``measuring``.
        on_update: called after every update.
    """

    def __init__(
        self,
        config: InnerConfig,
        games: Games | None = None,
        *,
        total_episodes: int,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.config = config
        self.games = games or Games()
        self.total_episodes = total_episodes
        self.seed = seed
        self.device = device
        self.episodes = 0
        self.least = config.episodes_per_update + config.measured_episodes
        self.watch = Stopwatch()
        self.on_update: Callable[[], object] = lambda: None
        self._env = self.games.make(
            config.episodes_per_update,
            compliance_weight=config.compliance_weight,
            autoreset_mode="disabled",
        )
        self._ppo = self._new_learner(seed)
        self._collector = self._new_collector()
        # With separate networks: what each workflow's learner is, but for the one at work, and that one's workflow.
        self._kept: dict[Workflow, dict[str, Any]] = {}
        self._at_work: Workflow | None = None
        # Where the next update takes up the list of workflows, if there are more of them than games.
        self._turn = 0

    def _new_learner(self, seed: int) -> PPO:
        return PPO(
            self.config.ppo(self.games.episode_length),
            Problem(
                self._env.single_observation_space,
                self._env.single_action_space,
                self._env.num_envs,
                total_steps=max(self.total_episodes * self.games.episode_length, 1),
                seed=seed,
                device=self.device,
            ),
        )

    def _new_collector(self) -> LockstepCollector:
        """Collects an episode of every game for each update."""
        plan = Plan(
            EnvSpec("Cage2WorkflowVectorEnv"),
            partial(MlpActor, self._ppo.policy.actor_architecture()),
            self._env.single_observation_space,
            self._env.single_action_space,
            num_envs=self._env.num_envs,
            num_steps=self.games.episode_length,
            seed=self.seed,
        )
        return native_collector(plan, env=self._env)

    def train(self, workflows: Sequence[Workflow], episodes: int) -> list[Outcome]:
        """Trains the shared network on workflows together: all games are divided evenly among them.

        Args:
            workflows: the orders.
            episodes: in all, a multiple of ``episodes_per_update``.

        Returns:
            The outcome of each, of the episodes of the last half that it was trained on, played as they were to learn:
            with random actions. NaN for a workflow whose turn did not come.

        Raises:
            ValueError: networks are separate and there are several workflows, or an odd number of episodes.
        """
        if self.config.network == "separate":
            if len(workflows) > 1:
                raise ValueError("each workflow has a network of its own: train one at a time")
            self._put_to_work(check_workflow(workflows[0]), None)
        games = self._env.num_envs
        if episodes % games:
            raise ValueError(f"episodes: expected a multiple of {games}, got {episodes}")
        orders = np.array([check_workflow(workflow) for workflow in workflows], np.int8)
        updates = episodes // games
        seen: list[dict[str, NDArray[Any]]] = []
        counts = np.zeros(len(orders), np.int64)
        for update in range(updates):
            turns = (self._turn + np.arange(games)) % len(orders)
            self._turn = (self._turn + games) % len(orders)
            self._update(orders[turns])
            counts += np.bincount(turns, minlength=len(orders))
            if update >= updates // 2:
                seen.append(self._env.episodes())
        return [
            self._seen(tuple(map(int, order)), int(count), seen)
            for order, count in zip(orders, counts, strict=True)
        ]

    def _update(self, orders: NDArray[np.int8]) -> None:
        """An episode of every game, and what is learnt from them."""
        self._env.set_workflows(orders)
        self._collector.refresh_observations()
        Publisher(self._ppo, self._collector).publish()
        before = self._collector.report()
        fragments = self._collector.collect()
        parts, _ = spent({}, before, self._collector.report())
        for part, seconds in parts.items():
            self.watch(part).seconds += seconds
        self._ppo.steps = self.episodes * self.games.episode_length
        self._ppo.update(fragments, self.watch)
        self.episodes += self._env.num_envs
        self.on_update()

    def _seen(self, workflow: Workflow, episodes: int, seen: list[dict[str, NDArray[Any]]]) -> Outcome:
        rows = [(told["workflow"] == workflow).all(axis=1) for told in seen]
        returns, compliance = (
            np.concatenate([np.empty(0), *(told[key][row] for told, row in zip(seen, rows, strict=True))])
            for key in ("return", "compliance")
        )
        if not len(returns):
            return Outcome(workflow, episodes, *[math.nan] * 4)
        return measured(workflow, episodes, returns, compliance)

    def play(self, workflow: Workflow, episodes: int, warm_start: Workflow | None = None) -> Outcome:
        """Trains on a workflow and measures what its policy does by now.

        As many whole updates are made as leave ``measured_episodes`` of ``episodes`` for measuring, which is done with
        the most probable actions; with fewer than ``least`` there is nothing but measuring.

        Args:
            workflow: the order.
            episodes: to play in all, at least 1.
            warm_start: with separate networks, where this workflow has none yet: begin with the network of that one.

        Raises:
            ValueError: an order that is none, no episodes, or a warm start from a workflow without a network.
        """
        workflow = check_workflow(workflow)
        if episodes < 1:
            raise ValueError(f"episodes: expected at least 1, got {episodes}")
        self._put_to_work(workflow, warm_start)
        games = self._env.num_envs
        updates = max(episodes - self.config.measured_episodes, 0) // games
        self.train([workflow], updates * games)
        left = episodes - updates * games
        outcome = self.evaluate(workflow, self.policy_state(workflow), left)
        self.episodes += left
        return Outcome(**(vars(outcome) | {"episodes": episodes}))

    def evaluate(
        self,
        workflow: Workflow,
        policy_state: dict[str, Any],
        episodes: int,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        **games: Any,
    ) -> Outcome:
        """What a policy does, without learning; does not count as episodes played.

        Args:
            workflow: by which its compliance is told.
            policy_state: of `policy_state`.
            episodes: one of each seed.
            seed: of the games; None: the trainer's own.
            deterministic: the most probable actions; otherwise they are drawn.
            games: other options of the games, such as ``ruleset``.
        """
        with self.watch("measuring"):
            own, *seeds = _seeds(self.seed if seed is None else seed, episodes + 1)
            actor = FoldedActor(policy_state, None if deterministic else own)
            told = [
                play_out(
                    self.games.make(len(batch), autoreset_mode="disabled", **games), workflow, actor, batch
                )
                for batch in (seeds[start : start + _BATCH] for start in range(0, episodes, _BATCH))
            ]
        returns, compliance = (
            np.concatenate([part[key] for part in told]) for key in ("return", "compliance")
        )
        return measured(workflow, episodes, returns, compliance)

    def policy_state(self, workflow: Workflow) -> dict[str, Any]:
        """The policy of a workflow as a network over the game's observations alone, see `fold`. A copy.

        Raises:
            ValueError: networks are separate and this workflow has none yet.
        """
        workflow = check_workflow(workflow)
        if self.config.network == "shared" or workflow == self._at_work:
            return fold(self._ppo.policy_state(), workflow)
        return fold(self._learner_of(workflow)["policy"], workflow)

    def _learner_of(self, workflow: Workflow) -> dict[str, Any]:
        if workflow not in self._kept:
            raise ValueError(f"workflow {workflow_name(workflow)} has no network yet: train it first")
        return self._kept[workflow]

    def _put_to_work(self, workflow: Workflow, warm_start: Workflow | None) -> None:
        """With separate networks: makes that of the workflow the one that learns."""
        if self.config.network == "shared" or workflow == self._at_work:
            return
        if self._at_work is not None:
            self._kept[self._at_work] = self._own_state(self._ppo)
        if workflow not in self._kept:
            place = WORKFLOWS.index(workflow)
            (seed,) = _seeds(self.seed, 1, place)
            new = self._own_state(self._new_learner(seed))
            if warm_start is not None:
                other = self._learner_of(check_workflow(warm_start))
                policy = unfold(fold(other["policy"], warm_start))
                new |= {"policy": policy, "return_scale": other["return_scale"]}
            self._kept[workflow] = new
        self._ppo.load_state_dict(self._ppo.state_dict() | self._kept.pop(workflow))
        self._at_work = workflow

    def _own_state(self, ppo: PPO) -> dict[str, Any]:
        """What tells one network's learner from another's. A copy."""
        state = ppo.state_dict()
        return {key: _copy(state[key]) for key in ("policy", "optimizer", "return_scale")}

    def state(self) -> dict[str, Any]:
        """All that `restore` needs, for a checkpoint: tensors, plain values and bytes. Call it between trainings."""
        return {
            "episodes": self.episodes,
            "turn": self._turn,
            # Of the next episode of each game; none is running between trainings.
            "numbers": torch.tensor(list(self._collector.state_dict()["numbers"].values())),
            "ppo": _copy(self._ppo.state_dict()),
            "at_work": None if self._at_work is None else workflow_name(self._at_work),
            "kept": {workflow_name(workflow): kept for workflow, kept in self._kept.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on exactly where the trainer that saved the state stood; it had the same settings.

        Raises:
            ValueError: it had others.
        """
        orders = {workflow_name(workflow): workflow for workflow in WORKFLOWS}
        self._ppo.load_state_dict(state["ppo"])
        self._collector.close()
        self._collector = self._new_collector()
        numbers = dict(enumerate(state["numbers"].tolist()))
        self._collector.load_state_dict({"numbers": numbers, "running": {}, "version": 0})
        self.episodes = state["episodes"]
        self._turn = state["turn"]
        self._at_work = None if state["at_work"] is None else orders[state["at_work"]]
        self._kept = {orders[name]: kept for name, kept in state["kept"].items()}


class FoldedActor:
    """Chooses actions for observations of the game with a folded network.

    Args:
        policy_state: of `fold`, or of a policy that never knew of workflows.
        seed: of the draws; None: the most probable actions.
    """

    def __init__(self, policy_state: dict[str, Any], seed: int | None = None) -> None:
        self._network = ActorCritic.from_state(policy_state).eval()
        self._generator = None if seed is None else torch.Generator().manual_seed(seed >> 1)
        self.obs_dim = self._network.obs_dim

    def __call__(self, obs: NDArray[np.float32]) -> NDArray[np.int64]:
        """Actions int64 [N] for observations float32 [N, D], of which the first ``obs_dim`` values are looked at."""
        with torch.inference_mode():
            logits = self._network.outputs(torch.from_numpy(obs[:, : self.obs_dim].copy()))
            if self._generator is None:
                return logits.argmax(-1).numpy()
            actions, _ = sample_actions(logits, torch.rand(len(obs), 1, generator=self._generator))
            return actions.numpy()


def play_out(
    env: Cage2WorkflowVectorEnv, workflow: Workflow, actor: FoldedActor, seeds: Sequence[int]
) -> dict[str, NDArray[Any]]:
    """Plays one episode of every game by a workflow; what `Cage2WorkflowVectorEnv.episodes` tells of them."""
    env.set_workflows([workflow] * env.num_envs)
    obs, _ = env.reset(seed=list(seeds))
    rewards, ends = np.empty(env.num_envs), np.empty((2, env.num_envs), np.bool_)
    for _ in range(env.episode_length):
        env.step_into(actor(obs), obs, rewards, *ends)
    told = env.episodes()
    env.close()
    return told


def fold(policy_state: dict[str, Any], workflow: Workflow) -> dict[str, Any]:
    """The network of `fastrl.networks.actor_critic.ActorCritic.state` for one workflow, without inputs for its code.
    A copy.

    The code's weights, where it is 1, are added to the first layers' biases.
    """
    code = torch.from_numpy(encode([workflow])[0])

    def first(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        game, order = weight.cpu().split([weight.shape[1] - WORKFLOW_LEN, WORKFLOW_LEN], dim=1)
        return game.clone(), bias.cpu() + order @ code

    return _with_inputs(policy_state, -WORKFLOW_LEN, first)


def unfold(policy_state: dict[str, Any]) -> dict[str, Any]:
    """A network with inputs for a workflow's code that does what this one, without them, does whatever the workflow."""

    def first(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([weight, weight.new_zeros(len(weight), WORKFLOW_LEN)], dim=1), bias.clone()

    return _with_inputs(policy_state, WORKFLOW_LEN, first)


def _with_inputs(policy_state: dict[str, Any], more: int, first: Any) -> dict[str, Any]:
    """A copy of the network with so many more inputs; ``first`` gives first layers' weight and bias."""
    architecture, weights = policy_state["architecture"], policy_state["weights"]
    out = {name: tensor.cpu().clone() for name, tensor in weights.items()}
    for part in ("actor", "critic"):
        names = f"{part}.0.weight", f"{part}.0.bias"
        out[names[0]], out[names[1]] = first(out[names[0]], out[names[1]])
    return {"architecture": architecture | {"obs_dim": architecture["obs_dim"] + more}, "weights": out}


def _copy(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _copy(value) for key, value in state.items()}
    return state.clone() if isinstance(state, Tensor) else state


def _seeds(seed: int, count: int, *path: int) -> list[int]:
    """Seeds of 64 bits, others for other paths."""
    return [int(word) for word in np.random.SeedSequence([seed, *path]).generate_state(count, np.uint64)]
