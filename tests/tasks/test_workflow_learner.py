"""Inner learner of workflow search: it learns to comply, resumes exactly, and its policies are plain networks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fastrl.envs.cage2.env import ACTIONS
from fastrl.envs.cage2.workflow import WORKFLOW_LEN, WORKFLOWS, encode, parse_workflow
from fastrl.networks.actor_critic import ActorCritic
from fastrl.runs.settings import RunConfig
from fastrl.tasks.workflow.folding import fold, unfold
from fastrl.tasks.workflow.learner import WorkflowPPO
from fastrl.tasks.workflow.outcome import Outcome
from fastrl.tasks.workflow.search import Proposal, Search
from fastrl.tasks.workflow.settings import EnvConfig, InnerConfig, SearchConfig
from fastrl.tasks.workflow.source import WorkflowSource, measure
from fastrl.training.trainer import Trainer
from fastrl.utils.config import build
from fastrl.utils.timer import Stopwatch

FIRST, SECOND = parse_workflow("op_server,enterprise,op_host,defender,user"), WORKFLOWS[60]
NETWORKS = ["shared", "separate"]


pytestmark = pytest.mark.usefixtures("one_thread")


class Script(Search):
    """Proposes given trainings, one after the other."""

    name = "script"

    def __init__(self, trainings: Sequence[Any]) -> None:
        self.proposals = [Proposal(*each, *[None] * (3 - len(each)), False) for each in trainings]
        super().__init__(SearchConfig(), WORKFLOWS, sum(each.episodes for each in self.proposals) or 2)

    def ask(self) -> Proposal | None:
        return next(iter(self.proposals[len(self.outcomes) :]), None)

    def _trial(self) -> None:
        return None


def make(
    *trainings: Any,
    joint: int = 0,
    total_episodes: int = 400,
    episode_length: int = 10,
    actions: Any = "effective",
    seed: int = 3,
    **settings: Any,
) -> Trainer:
    """A trainer of such trainings: workflow, episodes and perhaps a warm start of each.

    Args:
        joint: episodes of all workflows together before.
        total_episodes: over which schedules run.
    """
    config = InnerConfig(
        **(
            {
                "episodes_per_update": 16,
                "measured_episodes": 10,
                "hidden": (8,),
                "minibatch_size": 80,
                "num_epochs": 2,
            }
            | settings
        )
    )
    games = EnvConfig(episode_length=episode_length, actions=actions, n_workers=1)
    search = Script(trainings)
    source = WorkflowSource(config, games, search, joint_episodes=joint, seed=seed)
    problem = source.problem(total_episodes * episode_length, seed)
    ppo = WorkflowPPO(config.ppo(episode_length), problem, separate=config.networks == "separate")
    goal = joint + search.total_episodes
    return Trainer(RunConfig(total_timesteps=None, total_episodes=goal, row_seconds=0.0), ppo, source)


def outcomes_of(trainer: Trainer, count: int | None = None) -> list[Outcome]:
    """Trains until there are so many outcomes, or to the end."""
    outcomes: list[Outcome] = trainer.source.search.outcomes
    if count != len(outcomes):
        for _ in trainer.rows():
            if len(outcomes) == count:
                break
    return outcomes


def weights(trainer: Trainer, workflow: Any) -> np.ndarray:
    tensors = trainer.algorithm.policy_of(workflow)["weights"].values()
    return np.concatenate([tensor.numpy().reshape(-1) for tensor in tensors])


@pytest.mark.parametrize("network", NETWORKS)
def test_learns_to_comply(network: Any) -> None:
    # Of these few actions it finds the right ones soon.
    restores = tuple(i for i, name in enumerate(ACTIONS) if name.startswith("Restore"))
    trainer = make(
        (FIRST, 200),
        (FIRST, 1400),
        joint=384 if network == "shared" else 0,
        total_episodes=2000,
        episode_length=20,
        actions=restores,
        networks=network,
        episodes_per_update=64,
        measured_episodes=200,
        hidden=(32,),
        minibatch_size=320,
        num_epochs=4,
        learning_rate=5e-3,
        compliance_weight=50.0,
    )
    before, after = outcomes_of(trainer)
    assert before.compliance < 0.8 < 0.9 < after.compliance


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("before", [0, 100])
def test_resumes_exactly(network: Any, before: int) -> None:
    first = [(SECOND, before), (WORKFLOWS[7], before, SECOND)] if before else []
    trainings = [*first, (FIRST, 50), (SECOND, 60, FIRST), (FIRST, 45)]
    joint = 160 if before and network == "shared" else 0
    straight, stopped, resumed = (make(*trainings, joint=joint, networks=network) for _ in range(3))
    outcomes_of(stopped, len(first))
    resumed.load_state_dict(torch_round_trip(stopped.state_dict()))
    assert outcomes_of(resumed) == outcomes_of(straight)
    assert (resumed.steps, resumed.episodes) == (straight.steps, straight.episodes)
    for workflow in (FIRST, SECOND):
        np.testing.assert_array_equal(weights(resumed, workflow), weights(straight, workflow))


def torch_round_trip(state: dict[str, Any]) -> dict[str, Any]:
    """A copy, saved and loaded as tensors and plain values alone."""
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("network", NETWORKS)
def test_a_seed_fixes_everything(network: Any) -> None:
    runs = []
    for seed in (3, 3, 4):
        trainer = make((FIRST, 60), networks=network, seed=seed)
        runs.append((outcomes_of(trainer), weights(trainer, FIRST).tolist()))
    assert runs[0] == runs[1] != runs[2]


def test_every_episode_is_counted() -> None:
    lengths = (1, 25, 26, 100)
    trainer = make(*((FIRST, length) for length in lengths), joint=160)
    rows = list(trainer.rows())
    assert [outcome.episodes for outcome in outcomes_of(trainer)] == [*lengths]
    assert trainer.episodes == sum(row.metrics["rollout/episodes"] for row in rows) == 312
    assert trainer.steps == 3120
    # Updates of all together; then of the trainings that leave enough for a measurement.
    assert trainer.iteration == 10 + 1 + 5


def test_too_few_episodes_are_all_measured() -> None:
    trainer = make((FIRST, 25), (FIRST, 26))
    before = weights(trainer, FIRST)
    [outcome] = outcomes_of(trainer, 1)
    np.testing.assert_array_equal(weights(trainer, FIRST), before)
    policy = trainer.algorithm.policy_of(FIRST)
    assert outcome == measure(trainer.source.games, FIRST, policy, 25, 3, action_masks=True)
    outcomes_of(trainer)
    assert (weights(trainer, FIRST) != before).any()


def test_games_are_divided_evenly_among_workflows() -> None:
    """All take turns where there are fewer games than workflows."""
    trainer = make(joint=16 * 15)
    played: list[tuple[int, ...]] = []
    codes = {encode([workflow]).astype(np.float32).tobytes(): workflow for workflow in WORKFLOWS}
    for _ in range(15):
        for fragment in trainer.source.next(Stopwatch()):
            played += [codes[row[-WORKFLOW_LEN:].tobytes()] for row in fragment.obs[0]]
    assert Counter(played) == dict.fromkeys(WORKFLOWS, 2)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_warm_start_has_the_policy_of_its_source(network: Any) -> None:
    trainer = make((FIRST, 60), (SECOND, 10, FIRST), (SECOND, 30), (SECOND, 30), networks=network)
    outcomes_of(trainer, 1)
    expected = measure(
        trainer.source.games, SECOND, trainer.algorithm.policy_of(FIRST), 10, 3, action_masks=True
    )
    warm = outcomes_of(trainer, 2)[-1]
    if network == "separate":
        assert (warm.mean_return, warm.compliance) == (expected.mean_return, expected.compliance)
        np.testing.assert_array_equal(weights(trainer, SECOND), weights(trainer, FIRST))
        outcomes_of(trainer, 3)
        first = weights(trainer, FIRST)
        outcomes_of(trainer, 4)
        np.testing.assert_array_equal(weights(trainer, FIRST), first)
    assert (weights(trainer, SECOND) != weights(trainer, FIRST)).any()


def test_separate_networks_have_to_exist() -> None:
    ppo = make(networks="separate").algorithm
    with pytest.raises(ValueError, match="no network yet"):
        ppo.policy_of(FIRST)
    with pytest.raises(ValueError, match="no network yet"):
        ppo.activate(FIRST, SECOND)
    with pytest.raises(ValueError, match="one at a time"):
        make(joint=16, networks="separate")


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 16, got 17"):
        make(joint=17)
    with pytest.raises(ValueError, match="once"):
        make().algorithm.activate((0, 0, 1, 2, 3))


def new_network(obs_dim: int = 77) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    network = ActorCritic(obs_dim, 80, (16, 8), "relu", generator=generator)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(generator=generator)
    return network.state()


def test_a_folded_network_has_the_outputs_of_the_conditioned_one() -> None:
    state = new_network()
    network = ActorCritic.from_state(state)
    obs = np.random.default_rng(0).integers(2, size=(50, 52)).astype(np.float32)
    for workflow in WORKFLOWS[::13]:
        seen = np.concatenate([obs, np.repeat(encode([workflow]), 50, axis=0)], axis=1)
        folded = ActorCritic.from_state(fold(state, workflow))
        unfolded = ActorCritic.from_state(unfold(folded.state()))
        with torch.no_grad():
            logits, values = network(torch.from_numpy(seen))
            torch.testing.assert_close(folded.outputs(torch.from_numpy(obs)), logits, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(folded.value(torch.from_numpy(obs)), values, rtol=1e-4, atol=1e-4)
            seen[:, 52:] = encode([WORKFLOWS[0]])
            torch.testing.assert_close(unfolded.outputs(torch.from_numpy(seen)), logits, rtol=1e-4, atol=1e-4)
    assert folded.obs_dim == 52 and unfolded.obs_dim == 77


def test_outcomes_are_means_with_standard_errors() -> None:
    outcome = Outcome.measured(FIRST, 9, np.array([1.0, 3.0]), np.array([0.5, 0.5]))
    assert outcome == Outcome(FIRST, 9, 2.0, 1.0, 0.5, 0.0)
    single = Outcome.measured(FIRST, 1, np.array([1.0]), np.array([0.5]))
    assert math.isnan(single.return_stderr) and math.isnan(single.compliance_stderr)


def test_settings_reach_the_learner() -> None:
    config = build(InnerConfig, {"learning_rate": 0.5, "hidden": (7,), "final_entropy_coef": 0.25})
    ppo = config.ppo(33)
    assert (ppo.learning_rate, ppo.hidden, ppo.final_entropy_coef, ppo.num_steps) == (0.5, (7,), 0.25, 33)
