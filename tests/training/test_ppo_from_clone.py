"""PPO that starts with a clone of an expert: held near it by a divergence that decays, its statistics frozen."""

from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from demo_sets import cartpole_expert, played
from small_runs import differences, settings_of, trainer_of, untimed_state
from torch.nn.utils import parameters_to_vector

import fastrl
from fastrl.algorithms.ppo import PPO
from fastrl.runs.checkpoint import load_newest, save_checkpoint
from fastrl.training.trainer import Trainer

OPTIONS = [
    "--env=CartPole-v1",
    "--num-envs=4",
    "--collector=sequential",
    "--ppo.num-steps=16",
    "--ppo.hidden=8",
    "--ppo.normalize-obs",
    "--ppo.minibatch-size=32",
    "--total-timesteps=512",
    "--run.row-seconds=0",
    "--run.eval-episodes=0",
    "--device=cpu",
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The checkpoint of a clone with whitened observations."""
    path: Path = tmp_path_factory.mktemp("clone") / "run"
    demos = played(gymnasium.make("CartPole-v1"), cartpole_expert, 4, steps=60)
    model = fastrl.BC(
        "CartPole-v1", demos=demos, epochs=5, hidden=(8,), normalize_obs=True, run__eval_episodes=0
    )
    model.learn(run_dir=path)
    return load_newest(path)[1]


def ppo_of(clone: dict[str, Any], *options: str) -> tuple[Trainer, PPO]:
    trainer = trainer_of("gym", *OPTIONS, *options)
    trainer.load_policy(clone)
    assert isinstance(trainer.algorithm, PPO)
    return trainer, trainer.algorithm


def divergences(trainer: Trainer) -> list[float]:
    return [record["train/init_kl"] for row in trainer.rows() if "train/init_kl" in (record := row.record())]


@pytest.mark.slow
@pytest.mark.parametrize("memory", [[], ["--ppo.memory=gru", "--ppo.memory-size=4"]])
def test_a_large_weight_holds_the_policy_near_the_first_one(memory: list[str]) -> None:
    found = []
    for coef in (0.01, 30.0):
        trainer = trainer_of(
            "gym", *OPTIONS, *memory, f"--ppo.init-kl-coef={coef}", "--ppo.init-kl-steps=10000000"
        )
        found.append(divergences(trainer))
    assert len(found[0]) == 8
    assert max(found[1]) < 0.25 * max(found[0])


def test_the_weight_decays_after_the_warm_up_of_the_critic(clone: dict[str, Any]) -> None:
    options = ["--ppo.critic-warmup=128", "--ppo.init-kl-coef=0.5", "--ppo.init-kl-steps=256"]
    trainer, ppo = ppo_of(clone, *options)
    coefs = []
    for _ in trainer.rows():
        coefs.append(ppo.kl_coef)
    assert coefs == pytest.approx([0, 0, 0.5, 0.375, 0.25, 0.125, 0, 0])


def test_the_compiled_update_takes_over_where_there_is_no_divergence_to_add(clone: dict[str, Any]) -> None:
    weights = []
    for backend in ("compiled", "torch"):
        options = ["--ppo.init-kl-coef=0.5", "--ppo.init-kl-steps=128", f"--ppo.update-backend={backend}"]
        trainer, ppo = ppo_of(clone, *options)
        for _ in islice(trainer.rows(), 4):
            pass
        weights.append(parameters_to_vector(ppo.policy.parameters()).detach())
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("frozen", [False, True])
def test_the_statistics_of_a_clone_can_be_frozen(clone: dict[str, Any], frozen: bool) -> None:
    trainer, ppo = ppo_of(clone, *(["--ppo.freeze-obs-norm"] if frozen else []))
    for _ in trainer.rows():
        pass
    norm = ppo.policy.obs_norm
    weights = clone["learner"]["policy"]["weights"]
    assert bool((norm.count == weights["obs_norm.count"]).item()) == frozen
    assert torch.equal(norm.mean, weights["obs_norm.mean"]) == frozen


@pytest.mark.slow
def test_a_resumed_run_is_held_near_the_same_policy(clone: dict[str, Any]) -> None:
    options = ["--ppo.init-kl-coef=0.5", "--ppo.freeze-obs-norm"]
    whole, _ = ppo_of(clone, *options)
    for _ in whole.rows():
        pass
    first, _ = ppo_of(clone, *options)
    for _ in islice(first.rows(), 3):
        pass
    second = trainer_of("gym", *OPTIONS, *options)
    second.load_state_dict(first.state_dict())
    for _ in second.rows():
        pass
    states = [untimed_state(each.state_dict())["learner"] for each in (whole, second)]
    assert differences(*states) == []


def test_runs_from_a_clone_have_defaults_of_their_own(tmp_path: Path, clone: dict[str, Any]) -> None:
    path = tmp_path / "clone.safetensors"
    save_checkpoint(path, clone)
    start = ["--env=CartPole-v1", f"--init={path}"]
    ppo = settings_of("gym", *start, "--total-timesteps=100000").ppo
    assert (ppo.critic_warmup, ppo.init_kl_coef, ppo.init_kl_steps) == (10_000, 0.1, 40_000)
    assert ppo.freeze_obs_norm
    ppo = settings_of("gym", *start, "--total-timesteps=5000000", "--ppo.init-kl-coef=0").ppo
    assert (ppo.critic_warmup, ppo.init_kl_coef, ppo.init_kl_steps) == (25_000, 0, 50_000)
    # Those of other runs do not change, nor those of runs that start with another run than a clone.
    save_checkpoint(path, {**clone, "algorithm": "impala"})
    for options in (["--env=CartPole-v1"], start):
        assert settings_of("gym", *options).ppo.critic_warmup == 0
