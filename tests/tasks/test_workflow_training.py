"""The inner learner of workflow search: it learns to comply, goes on exactly, and its policies are plain ones."""

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
from fastrl.tasks.workflow.training import (
    FoldedActor,
    Games,
    InnerConfig,
    Outcome,
    WorkflowTrainer,
    fold,
    measured,
    unfold,
)
from fastrl.utils.config import build

FIRST, SECOND = parse_workflow("op_server,enterprise,op_host,defender,user"), WORKFLOWS[60]
NETWORKS = ["shared", "separate"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small gain nothing from more, and threads that wait for each other suffer on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(
    total_episodes: int = 400,
    *,
    episode_length: int = 10,
    actions: Any = "effective",
    seed: int = 3,
    **settings: Any,
) -> WorkflowTrainer:
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
    games = Games(episode_length=episode_length, actions=actions, num_threads=1)
    return WorkflowTrainer(config, games, total_episodes=total_episodes, seed=seed)


def weights(trainer: WorkflowTrainer, workflow: Any) -> np.ndarray:
    tensors = trainer.policy_state(workflow)["weights"].values()
    return np.concatenate([tensor.numpy().reshape(-1) for tensor in tensors])


@pytest.mark.parametrize("network", NETWORKS)
def test_learns_to_comply(network: Any) -> None:
    # Of these few actions it finds the right ones soon.
    restores = tuple(i for i, name in enumerate(ACTIONS) if name.startswith("Restore"))
    trainer = make(
        2000,
        episode_length=20,
        actions=restores,
        network=network,
        episodes_per_update=64,
        measured_episodes=200,
        hidden=(32,),
        minibatch_size=320,
        num_epochs=4,
        learning_rate=5e-3,
        compliance_weight=50.0,
    )
    if network == "shared":
        trainer.train(WORKFLOWS, 384)
    before = trainer.play(FIRST, 200)
    after = trainer.play(FIRST, 1400)
    assert before.compliance < 0.8 < 0.9 < after.compliance


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("before", [0, 100])
def test_goes_on_as_if_never_stopped(network: Any, before: int) -> None:
    def play(trainer: WorkflowTrainer) -> list[Outcome]:
        return [trainer.play(FIRST, 50), trainer.play(SECOND, 60, FIRST), trainer.play(FIRST, 45)]

    straight, stopped = make(network=network), make(network=network)
    if before:
        if network == "shared":
            straight.train(WORKFLOWS, 160)
        straight.play(SECOND, before)
        straight.play(WORKFLOWS[7], before, SECOND)
    stopped.restore(torch_round_trip(straight.state()))
    assert play(stopped) == play(straight)
    assert stopped.episodes == straight.episodes
    for workflow in (FIRST, SECOND):
        np.testing.assert_array_equal(weights(stopped, workflow), weights(straight, workflow))


def torch_round_trip(state: dict[str, Any]) -> dict[str, Any]:
    """Through what a checkpoint can hold."""
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
        trainer = make(network=network, seed=seed)
        runs.append((trainer.play(FIRST, 60), weights(trainer, FIRST).tolist()))
    assert runs[0] == runs[1] != runs[2]


def test_every_episode_is_counted() -> None:
    trainer = make(400)
    trainer.train(WORKFLOWS, 160)
    assert trainer.episodes == 160
    assert trainer.least == 26
    for episodes in (1, 25, 26, 100):
        assert trainer.play(FIRST, episodes).episodes == episodes
    assert trainer.episodes == 312


def test_too_few_episodes_are_all_measured() -> None:
    trainer = make()
    before = weights(trainer, FIRST)
    outcome = trainer.play(FIRST, trainer.least - 1)
    np.testing.assert_array_equal(weights(trainer, FIRST), before)
    again = trainer.evaluate(FIRST, trainer.policy_state(FIRST), trainer.least - 1)
    assert outcome == again
    trainer.play(FIRST, trainer.least)
    assert (weights(trainer, FIRST) != before).any()


def test_games_are_divided_evenly_among_workflows() -> None:
    trainer = make()
    outcomes = trainer.train(WORKFLOWS[:5], 16 * 5)
    assert [outcome.episodes for outcome in outcomes] == [16] * 5
    # All take turns where there are fewer games than workflows.
    outcomes = trainer.train(WORKFLOWS, 16 * 15)
    assert [outcome.episodes for outcome in outcomes] == [2] * 120
    assert all(outcome.return_stderr is not None for outcome in outcomes)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_warm_start_does_what_its_model_does(network: Any) -> None:
    trainer = make(network=network)
    trainer.play(FIRST, 60)
    expected = trainer.evaluate(SECOND, trainer.policy_state(FIRST), 10)
    warm = trainer.play(SECOND, 10, FIRST)
    if network == "separate":
        assert (warm.mean_return, warm.compliance) == (expected.mean_return, expected.compliance)
        np.testing.assert_array_equal(weights(trainer, SECOND), weights(trainer, FIRST))
        trainer.play(SECOND, 30)
        first = weights(trainer, FIRST)
        trainer.play(SECOND, 30)
        np.testing.assert_array_equal(weights(trainer, FIRST), first)
    assert (weights(trainer, SECOND) != weights(trainer, FIRST)).any()


def test_separate_networks_want_to_be_there() -> None:
    trainer = make(network="separate")
    with pytest.raises(ValueError, match="no network yet"):
        trainer.policy_state(FIRST)
    with pytest.raises(ValueError, match="no network yet"):
        trainer.play(FIRST, 30, SECOND)
    with pytest.raises(ValueError, match="one at a time"):
        trainer.train([FIRST, SECOND], 16)


def test_bad_numbers_are_named() -> None:
    trainer = make()
    with pytest.raises(ValueError, match="multiple of 16, got 17"):
        trainer.train([FIRST], 17)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        trainer.play(FIRST, 0)
    with pytest.raises(ValueError, match="once"):
        trainer.play((0, 0, 1, 2, 3), 30)


def new_network(obs_dim: int = 77) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    network = ActorCritic(obs_dim, 80, (16, 8), "relu", generator=generator)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(generator=generator)
    return network.state()


def test_a_folded_network_does_what_the_conditioned_one_does() -> None:
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


def test_actors_draw_or_take_the_most_probable() -> None:
    state = fold(new_network(), FIRST)
    obs = np.zeros((4000, 77), np.float32)
    best, draws = FoldedActor(state)(obs), FoldedActor(state, seed=1)(obs)
    probabilities = ActorCritic.from_state(state).outputs(torch.zeros(1, 52)).softmax(-1)[0].detach().numpy()
    assert (best == probabilities.argmax()).all()
    np.testing.assert_allclose(np.bincount(draws, minlength=80) / 4000, probabilities, atol=0.04)


def test_outcomes_are_means_with_standard_errors() -> None:
    outcome = measured(FIRST, 9, np.array([1.0, 3.0]), np.array([0.5, 0.5]))
    assert outcome == Outcome(FIRST, 9, 2.0, 1.0, 0.5, 0.0)
    single = measured(FIRST, 1, np.array([1.0]), np.array([0.5]))
    assert math.isnan(single.return_stderr) and math.isnan(single.compliance_stderr)


def test_settings_reach_the_learner() -> None:
    config = build(InnerConfig, {"learning_rate": 0.5, "hidden": (7,), "final_entropy_coef": 0.25})
    ppo = config.ppo(33)
    assert (ppo.learning_rate, ppo.hidden, ppo.final_entropy_coef, ppo.num_steps) == (0.5, (7,), 0.25, 33)
