"""A memory solves what cannot be solved without: CartPole that shows no velocities, a symbol from 15 or 50 steps ago,
and hints of many agents."""

import os
from typing import Any

import pytest
from memory_envs import Recall
from parallel_toys import Hints
from rich.console import Console
from small_runs import trainer_of

import fastrl
from fastrl.training.evaluation import Evaluation

pytestmark = pytest.mark.learning

SEED = int(os.environ.get("FASTRL_LEARNING_SEED", "0"))


def greedy_return(*options: str) -> float:
    """The mean return of the policy that a run ends with, over 20 episodes."""
    trainer: Any = trainer_of(
        "gym", *options, f"--seed={SEED}", "--collector=sequential", "--run.eval-episodes=20", "--device=cpu"
    )
    list(trainer.rows())
    evaluation = trainer.callback(Evaluation)
    evaluation.at_end(trainer, Console(quiet=True))
    return float(evaluation.scores.mean_return)


@pytest.mark.parametrize(("memory", "solved"), [("gru", True), ("lstm", True), ("none", False)])
def test_cartpole_without_velocities_needs_a_memory(memory: str, solved: bool) -> None:
    mean_return = greedy_return(
        "--env=memory_envs:Positions",
        "--num-envs=16",
        "--total-timesteps=25000",
        "--stop-at-return=150",
        f"--ppo.memory={memory}",
        "--ppo.num-steps=128",
        "--ppo.minibatch-size=512",
        "--ppo.num-epochs=6",
        "--ppo.learning-rate=2e-3",
        "--ppo.final-learning-rate=0",
    )
    print(f"CartPole without velocities, {memory}, seed {SEED}: {mean_return}")
    # Of three seeds with a memory at least 213, without at most 45.
    assert (mean_return >= 120) == solved


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_symbol_is_recalled_after_15_steps(memory: str) -> None:
    mean_return = greedy_return(
        "--env=memory_envs:Recall",
        "--env.options",
        "length=16",
        "--num-envs=64",
        "--total-timesteps=160000",
        "--stop-at-return=0.97",
        f"--ppo.memory={memory}",
        "--ppo.num-steps=16",
        "--ppo.minibatch-size=512",
        "--ppo.num-epochs=8",
        "--ppo.learning-rate=2e-3",
        "--ppo.final-learning-rate=1e-3",
        "--ppo.gamma=0.9",
        # The one action that counts is paid at once.
        "--ppo.gae-lambda=0",
        "--ppo.entropy-coef=0",
        "--ppo.final-entropy-coef=0",
        "--no-ppo.normalize-returns",
        # Few samples of a minibatch count.
        "--ppo.normalize-advantages=rollout",
    )
    print(f"recall, {memory}, seed {SEED}: {mean_return}")
    # By chance 0.25; of three seeds all recall always.
    assert mean_return >= 0.95


def test_a_symbol_is_recalled_from_sequences_of_a_replay() -> None:
    model = fastrl.DQN(
        Recall,
        env__options={"length": 6},
        num_envs=8,
        seed=SEED,
        collector="sequential",
        eval_episodes=0,
        memory="gru",
        memory_size=16,
        hidden=(32,),
        sequence_length=6,
        burn_in=0,
        batch_size=96,
        n_step=1,
        gamma=0.9,
        learning_rate=3e-3,
        epsilon_steps=2_000,
        final_epsilon=0.05,
        target_every=50,
        learning_starts=200,
    )
    model.learn(4_000)
    mean_return, _ = model.evaluate(episodes=100)
    print(f"recall, DQN gru, seed {SEED}: {mean_return}")
    # By chance 0.25; see the comment of the symbol from 15 steps ago.
    assert mean_return >= 0.9


def test_a_symbol_is_recalled_after_50_steps_from_sequences_of_a_replay() -> None:
    model = fastrl.DQN(
        Recall,
        env__options={"length": 51},
        num_envs=16,
        seed=SEED,
        collector="sequential",
        eval_episodes=0,
        device="cpu",
        memory="lstm",
        hidden=(),
        # As long that most sequences are whole episodes: gradients are to reach the symbol.
        sequence_length=192,
        burn_in=0,
        batch_size=32 * 192,
        n_step=1,
        gamma=0.9,
        learning_rate=4e-3,
        epsilon_steps=4_000,
        # The last action of an episode alone counts.
        final_epsilon=0.5,
        target_every=50,
        learning_starts=2_000,
        train_freq=17,
        updates_per_step=0.06,
    )
    model.learn(24_000)
    mean_return, _ = model.evaluate(episodes=100)
    print(f"recall, DQN lstm, seed {SEED}: {mean_return}")
    # By chance 0.25; of four seeds all recall always.
    assert mean_return >= 0.95


@pytest.mark.parametrize(
    ("algorithm", "memory", "solved"),
    [
        (fastrl.IPPO, "gru", True),
        (fastrl.MAPPO, "lstm", True),
        (fastrl.REINFORCE, "gru", True),
        (fastrl.IPPO, "none", False),
    ],
)
def test_hints_of_the_first_step_are_remembered(algorithm: Any, memory: str, solved: bool) -> None:
    model = algorithm(
        Hints,
        num_envs=16,
        num_steps=32,
        seed=SEED,
        collector="sequential",
        eval_episodes=0,
        memory=memory,
        memory_size=16,
        hidden=(32,),
        minibatch_size=512,
        learning_rate=3e-3,
        lr_schedule="constant",
        gamma=0.9,
    )
    model.learn(20_000)
    mean_return, _ = model.evaluate(episodes=200)
    print(f"hints, {algorithm.__name__} {memory}, seed {SEED}: {mean_return}")
    # An agent that chooses by chance after its first step is paid for half of these steps.
    assert mean_return > 3.5 if solved else mean_return < 2.8
