"""The recipes, and the places of the library where they start from."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pages
import pytest
import torch
from small_runs import differences, learnt

import fastrl
from fastrl.cli.main import main
from fastrl.envs import make_multi
from fastrl.envs.contract import ContractError
from fastrl.exports.export import ExportError
from fastrl.play.policy import PredictError
from fastrl.runs.checkpoint import CheckpointError
from fastrl.runs.errors import TrainError
from fastrl.tasks.traffic.settings import EnvConfig, environment_options
from fastrl.utils.config import ConfigError

RECIPES = pages.ROOT / "examples" / "recipes"
if not RECIPES.exists():
    pytest.skip("a source distribution has no examples", allow_module_level=True)
COOP, GOALS = "fastrl/coop-highway-v0", "fastrl/BitFlip-v0"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RECIPES))


def recipe(name: str) -> ModuleType:
    if name == "own_reward":
        pytest.importorskip("pettingzoo", reason="pip install '.[pettingzoo]'")
    return importlib.import_module(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(file.stem for file in RECIPES.glob("*.py")))
def test_a_recipe_runs_with_small_budgets(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pages.with_small_budgets(monkeypatch)
    recipe(name).main()
    assert "(" in capsys.readouterr().out
    page = (pages.ROOT / "docs/guides/recipes.md").read_text(encoding="utf-8")
    assert f"examples/recipes/{name}.py" in page
    assert len((RECIPES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 80


def small(algo: Any, env: str = "CartPole-v1", **settings: Any) -> fastrl.Model:
    sizes = {"num_envs": 4, "num_steps": 16, "minibatch_size": 32, "hidden": (8,), "collector": "sequential"}
    return fastrl.Model(env, algo=algo, seed=0, **{**sizes, "eval_episodes": 0, **settings})


def test_dual_clip_bounds_the_objective_of_bad_actions() -> None:
    algorithm = small(recipe("dual_clip").DualClipPPO, dual_clip=2.0).trainer.algorithm
    epsilon = algorithm.config.clip_range
    ratios, advantages = torch.rand(200) * 6, torch.randn(200)
    expected = []
    for r, a in zip(ratios.tolist(), advantages.tolist(), strict=True):
        clipped = min(r * a, min(max(r, 1 - epsilon), 1 + epsilon) * a)
        expected.append(max(clipped, 2.0 * a) if a < 0 else clipped)
    found = algorithm.surrogate(ratios, advantages)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert (found > small("ppo").trainer.algorithm.surrogate(ratios, advantages)).any()
    assert "PyTorch takes the gradient steps" in algorithm.remarks()[0]


@pytest.mark.parametrize("network", [{}, {"layer_norm": True}], ids=["perceptron", "layer norm"])
def test_another_distribution_than_the_gaussian(network: dict[str, Any], tmp_path: Path) -> None:
    """Ratios start at 1: the actor draws from the distribution whose log-probabilities the loss compares."""
    algo = recipe("beta_policy").BetaPPO
    settings = {"num_epochs": 1, "minibatch_size": 10_000, "num_steps": 32, **network}
    model = small(algo, "Pendulum-v1", **settings).learn(128, progress=False)
    row = model.metrics[-1]
    assert row["train/approx_kl"] == pytest.approx(0, abs=1e-6) and np.isfinite(row["train/entropy"])
    obs = np.random.default_rng(0).uniform(-1, 1, (64, 3)).astype(np.float32)
    model.save(tmp_path / "beta.safetensors")
    loaded = fastrl.load(tmp_path / "beta.safetensors", trust=True)
    greedy = loaded.predict(obs)[0]
    np.testing.assert_array_equal(model.predict(obs)[0], greedy)
    drawn = np.concatenate([loaded.predict(obs, deterministic=False)[0] for _ in range(20)])
    assert np.abs(drawn).max() < 2 and drawn.std() > 2 * greedy.std()
    # Without the code of its distribution it would act as a Gaussian does.
    with pytest.raises(CheckpointError, match=r"fastrl\.load\(path, trust=True\)"):
        fastrl.load_policy(tmp_path / "beta.safetensors")
    with pytest.raises(ExportError, match="BetaActor, the algorithm's own actor"):
        fastrl.export(model, tmp_path / "beta.npz")
    with pytest.raises(PredictError, match="BetaActor, the algorithm's own actor"):
        model.distribution(obs)
    with pytest.raises(TrainError, match="init_kl_coef is for PPO's own distributions"):
        small(algo, "Pendulum-v1", init_kl_coef=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("collector", ["sequential", "sync", "executor"])
def test_what_a_recipe_learns_is_resumed_exactly(collector: str, tmp_path: Path) -> None:
    command = [
        "train",
        "Pendulum-v1",
        "--algo=beta_policy:BetaPPO",
        "--num-envs=4",
        f"--collector={collector}",
    ]
    command += ["--ppo.num-steps=25", "--ppo.hidden=8", "--run.eval-episodes=0", "--run.row-seconds=0"]
    # Schedules would end with the total of each command.
    command += ["--ppo.learning-rate=1e-3", "--ppo.final-learning-rate=1e-3"]
    command += ["--ppo.entropy-coef=0", "--ppo.final-entropy-coef=0"]
    command += [] if collector == "sequential" else ["--n-workers=2"]
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert main([*command, "--total-timesteps=400", f"--run-dir={straight}"]) == 0
    assert main([*command, "--total-timesteps=200", f"--run-dir={stopped}"]) == 0
    assert main(["train", f"--resume={stopped}", "--trust", "--total-timesteps=400"]) == 0
    assert differences(learnt(straight)["learner"], learnt(stopped)["learner"]) == []


def test_an_algorithm_brings_the_sampler_of_its_replay() -> None:
    module = recipe("own_sampler")
    sizes = {"num_envs": 4, "hidden": (8,), "batch_size": 16, "collector": "sequential", "eval_episodes": 0}
    model = fastrl.Model("CartPole-v1", algo=module.LossAdjustedDQN, seed=0, **sizes)
    model.learn(1_400, progress=False)
    sampler = model.trainer.source.minibatches.sampler
    assert type(sampler) is module.LossAdjustedSampler and sampler.beta == 0
    priorities = sampler.state_dict()["priorities"].numpy()
    assert priorities[priorities > 0].min() >= 1.0
    with pytest.raises(TrainError, match="set hindsight to 0"):
        fastrl.Model(GOALS, algo=module.LossAdjustedDQN, replay__hindsight=0.5, dqn__n_step=1, **sizes)


def test_a_wrapper_shares_the_rewards_of_a_parallel_environment() -> None:
    env = recipe("own_reward").shared_highway()
    env.reset(seed=0)
    own = fastrl.envs.adapters.parallel_env(COOP, max_agents=4)
    own.reset(seed=0)
    for _ in range(3):
        actions = dict.fromkeys(env.agents, 3)
        shared, separate = env.step(actions)[1], own.step(actions)[1]
        assert len(set(separate.values())) > 1
        assert shared == dict.fromkeys(separate, sum(separate.values()) / len(separate))


@pytest.mark.parametrize("mode", ["same_step", "disabled"])
def test_a_function_changes_the_rewards_of_compiled_traffic(mode: str) -> None:
    seen = []

    def speed(rewards: Any, actions: Any, obs: Any, terminations: Any, truncations: Any) -> Any:
        seen.append(obs.copy())
        return obs[:, 2] + (actions == 3)

    options = {"max_agents": 3, "duration": 5, "autoreset_mode": mode, "num_threads": 1}
    plain, changed = make_multi(COOP, 2, **options), make_multi(COOP, 2, reward=speed, **options)
    generator, returns = np.random.default_rng(0), np.zeros(2)
    alive = plain.reset(seed=0)[1]
    changed.reset(seed=0)
    for _ in range(5):
        actions = generator.integers(0, 5, (2, 3))
        obs, _, terminations, truncations, _, info = plain.step(actions)
        rewards = changed.step(actions)[1]
        last = obs
        if "final_obs" in info:
            last = np.where(info["_final_obs"][:, None, None], info["final_obs"], obs)
        acted = alive
        np.testing.assert_array_equal(seen[-1].reshape(last.shape)[acted], last[acted])
        np.testing.assert_allclose(rewards[acted], (last[..., 2] + (actions == 3))[acted], rtol=1e-6)
        returns += np.where(acted, rewards, 0).sum(1)
        alive = acted & ~(terminations | truncations)
    assert not alive.any()
    np.testing.assert_allclose(changed.episodes()["return_mean"], returns / 3, rtol=1e-5)
    assert set(changed.episodes()) == set(plain.episodes())
    np.testing.assert_array_equal(changed.episodes()["collision_rate"], plain.episodes()["collision_rate"])
    state = changed.save_state()
    changed.load_state(state)
    assert changed.save_state() == state


def tens(rewards: Any, actions: Any, obs: Any, terminations: Any, truncations: Any) -> Any:
    return np.full_like(rewards, 10.0)


@pytest.mark.parametrize("collector", ["native", "sequential"])
def test_agents_learn_from_the_changed_rewards(collector: str) -> None:
    """Rewards of the simulator are below 1 a step."""
    settings = {"env__vehicles": 3, "env__duration": 4, "num_envs": 2, "collector": collector, "hidden": (8,)}
    model = fastrl.IPPO(COOP, env__reward=f"{__name__}:tens", seed=0, eval_episodes=0, **settings)
    model.learn(total_episodes=4, progress=False)
    assert set(np.unique(model.trainer.algorithm.rollout.rewards)) <= {0.0, 10.0}
    for mean_return in (model.metrics[-1]["rollout/ep_rew_mean"], model.evaluate(2)[0]):
        assert 10 <= mean_return <= 40


def test_what_is_no_function_of_rewards_is_refused() -> None:
    for path, message in (("nothing", "expected an import path"), ("os:nothing", "no attribute 'nothing'")):
        with pytest.raises(ConfigError, match=message):
            environment_options(EnvConfig(reward=path))
    with pytest.raises(TypeError, match="expected a function"):  # no option of a file imports anything
        make_multi(COOP, 1, **environment_options(EnvConfig(options=("reward=os:system",))))
    envs = make_multi(COOP, 1, reward=lambda *arrays: np.zeros(2), max_agents=3)
    envs.reset(seed=0)
    with pytest.raises(ContractError, match=r"reward should give numbers of shape \(3,\), got \(2,\)"):
        envs.step(np.ones((1, 3), np.int64))


def test_the_policy_does_without_the_features_of_its_critic(tmp_path: Path) -> None:
    env = recipe("critic_features").HiddenGravity
    assert env().reset(seed=0)[0].shape == (4,)
    model = small("ppo", env, actor_inputs=3).learn(64, progress=False)
    obs = np.random.default_rng(0).uniform(-1, 1, (16, 4)).astype(np.float32)
    actions = model.predict(obs)[0]
    np.testing.assert_array_equal(model.predict(obs * np.float32([1, 1, 1, 0]))[0], actions)
    model.save(tmp_path / "policy.safetensors")
    policy = fastrl.load_policy(tmp_path / "policy.safetensors")
    np.testing.assert_allclose(policy.act(obs[:, :3], deterministic=True), actions, rtol=1e-6)
