"""Inner learner of workflow search: it learns to comply, resumes exactly, and its policies are plain networks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fastrl.envs.cage2.env import ACTIONS
from fastrl.envs.cage2.workflow import WORKFLOWS, encode, parse_workflow
from fastrl.networks.actor_critic import ActorCritic
from fastrl.tasks.workflow.folding import fold, unfold
from fastrl.tasks.workflow.learner import WorkflowLearner, measure
from fastrl.tasks.workflow.outcome import Outcome
from fastrl.tasks.workflow.settings import EnvConfig, InnerConfig
from fastrl.utils import torch_threads
from fastrl.utils.config import build

FIRST, SECOND = parse_workflow("op_server,enterprise,op_host,defender,user"), WORKFLOWS[60]
NETWORKS = ["shared", "separate"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small gain nothing from more, and threads that wait for each other suffer on a busy machine."""
    with torch_threads.one_thread():
        yield


def make(
    total_episodes: int = 400,
    *,
    episode_length: int = 10,
    actions: Any = "effective",
    seed: int = 3,
    **settings: Any,
) -> WorkflowLearner:
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
    return WorkflowLearner(config, games, total_episodes=total_episodes, seed=seed)


def weights(learner: WorkflowLearner, workflow: Any) -> np.ndarray:
    tensors = learner.policy_state(workflow)["weights"].values()
    return np.concatenate([tensor.numpy().reshape(-1) for tensor in tensors])


@pytest.mark.parametrize("network", NETWORKS)
def test_learns_to_comply(network: Any) -> None:
    # Of these few actions it finds the right ones soon.
    restores = tuple(i for i, name in enumerate(ACTIONS) if name.startswith("Restore"))
    learner = make(
        2000,
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
    if network == "shared":
        learner.train(WORKFLOWS, 384)
    before = learner.train_one(FIRST, 200)
    after = learner.train_one(FIRST, 1400)
    assert before.compliance < 0.8 < 0.9 < after.compliance


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("before", [0, 100])
def test_resumes_exactly(network: Any, before: int) -> None:
    def train(learner: WorkflowLearner) -> list[Outcome]:
        return [
            learner.train_one(FIRST, 50),
            learner.train_one(SECOND, 60, FIRST),
            learner.train_one(FIRST, 45),
        ]

    straight, stopped = make(networks=network), make(networks=network)
    if before:
        if network == "shared":
            straight.train(WORKFLOWS, 160)
        straight.train_one(SECOND, before)
        straight.train_one(WORKFLOWS[7], before, SECOND)
    stopped.load_state_dict(torch_round_trip(straight.state_dict()))
    assert train(stopped) == train(straight)
    assert stopped.episodes == straight.episodes
    for workflow in (FIRST, SECOND):
        np.testing.assert_array_equal(weights(stopped, workflow), weights(straight, workflow))


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
        learner = make(networks=network, seed=seed)
        runs.append((learner.train_one(FIRST, 60), weights(learner, FIRST).tolist()))
    assert runs[0] == runs[1] != runs[2]


def test_every_episode_is_counted() -> None:
    learner = make(400)
    learner.train(WORKFLOWS, 160)
    assert learner.episodes == 160
    assert learner.min_episodes == 26
    for episodes in (1, 25, 26, 100):
        assert learner.train_one(FIRST, episodes).episodes == episodes
    assert learner.episodes == 312


def test_too_few_episodes_are_all_measured() -> None:
    learner = make()
    before = weights(learner, FIRST)
    outcome = learner.train_one(FIRST, learner.min_episodes - 1)
    np.testing.assert_array_equal(weights(learner, FIRST), before)
    again = measure(
        learner.games,
        FIRST,
        learner.policy_state(FIRST),
        learner.min_episodes - 1,
        learner.seed,
        action_masks=True,
    )
    assert outcome == again
    learner.train_one(FIRST, learner.min_episodes)
    assert (weights(learner, FIRST) != before).any()


def test_games_are_divided_evenly_among_workflows() -> None:
    learner = make()
    outcomes = learner.train(WORKFLOWS[:5], 16 * 5)
    assert [outcome.episodes for outcome in outcomes] == [16] * 5
    # All take turns where there are fewer games than workflows.
    outcomes = learner.train(WORKFLOWS, 16 * 15)
    assert [outcome.episodes for outcome in outcomes] == [2] * 120
    assert all(outcome.return_stderr is not None for outcome in outcomes)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_warm_start_has_the_policy_of_its_source(network: Any) -> None:
    learner = make(networks=network)
    learner.train_one(FIRST, 60)
    expected = measure(
        learner.games, SECOND, learner.policy_state(FIRST), 10, learner.seed, action_masks=True
    )
    warm = learner.train_one(SECOND, 10, FIRST)
    if network == "separate":
        assert (warm.mean_return, warm.compliance) == (expected.mean_return, expected.compliance)
        np.testing.assert_array_equal(weights(learner, SECOND), weights(learner, FIRST))
        learner.train_one(SECOND, 30)
        first = weights(learner, FIRST)
        learner.train_one(SECOND, 30)
        np.testing.assert_array_equal(weights(learner, FIRST), first)
    assert (weights(learner, SECOND) != weights(learner, FIRST)).any()


def test_separate_networks_have_to_exist() -> None:
    learner = make(networks="separate")
    with pytest.raises(ValueError, match="no network yet"):
        learner.policy_state(FIRST)
    with pytest.raises(ValueError, match="no network yet"):
        learner.train_one(FIRST, 30, SECOND)
    with pytest.raises(ValueError, match="one at a time"):
        learner.train([FIRST, SECOND], 16)


def test_bad_numbers_are_refused() -> None:
    learner = make()
    with pytest.raises(ValueError, match="multiple of 16, got 17"):
        learner.train([FIRST], 17)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        learner.train_one(FIRST, 0)
    with pytest.raises(ValueError, match="once"):
        learner.train_one((0, 0, 1, 2, 3), 30)


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
