"""Behaviour cloning: any spaces and networks, exact epochs and resumes, known answers, bad data refused in one line."""

import math
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from demo_sets import DemoSet, Episode, cartpole_expert, played, written
from gymnasium.spaces import Box
from numpy.typing import NDArray
from small_runs import differences, settings_of, untimed_state
from space_cases import ACTION_SPACES, OBS_SPACES, AnySpaces

import fastrl
from fastrl.algorithms.bc import BC
from fastrl.algorithms.protocol import DatasetBatch, DatasetSpec
from fastrl.cli.main import main
from fastrl.networks.action_space import Actions
from fastrl.play.policy import Policy
from fastrl.runs.errors import TrainError
from fastrl.sources import demo_arrays
from fastrl.sources.dataset import Batches, DatasetSource
from fastrl.sources.demo_arrays import DemoArrays, best_episodes, split_episodes
from fastrl.tasks import find
from fastrl.training.trainer import Trainer
from fastrl.utils.config import ConfigError
from fastrl.utils.errors import UserError

SMALL = [
    "--algo=bc",
    "--epochs=3",
    "--bc.batch-size=8",
    "--bc.hidden=8",
    "--run.row-seconds=0",
    "--run.eval-episodes=0",
    "--device=cpu",
]


def trainer_of(demos: DemoSet, *options: str) -> Trainer:
    trainer = find("gym").with_demos(demos).make_trainer(settings_of("gym", *SMALL, *options))
    assert isinstance(trainer, Trainer)
    return trainer


def any_demos(obs: str = "vector", actions: str = "discrete", episodes: int = 12) -> DemoSet:
    env = AnySpaces(obs, actions)
    env.action_space.seed(3)
    return played(env, lambda _: env.action_space.sample(), episodes)


def any_options(obs: str = "vector", actions: str = "discrete") -> list[str]:
    return ["--env=space_cases:AnySpaces", "--env.options", f"obs={obs}", f"actions={actions}"]


def source_of(trainer: Trainer) -> DatasetSource:
    assert isinstance(trainer.source, DatasetSource)
    return trainer.source


def cartpole_demos(episodes: int = 10, steps: int = 10_000) -> DemoSet:
    return played(gymnasium.make("CartPole-v1"), cartpole_expert, episodes, steps=steps)


@pytest.mark.parametrize("actions", ACTION_SPACES)
def test_all_actions_are_cloned(actions: str) -> None:
    trainer = trainer_of(any_demos(actions=actions), *any_options(actions=actions))
    rows = [row.record() for row in trainer.rows()]
    assert trainer.steps == 3 * source_of(trainer).num_samples == trainer.goal[0]
    score = "mean_square_error" if isinstance(ACTION_SPACES[actions], Box) else "accuracy"
    for name in ("train/loss", f"train/{score}", "dataset/validation_loss", f"dataset/validation_{score}"):
        assert math.isfinite(rows[-1][name])


@pytest.mark.parametrize("obs", OBS_SPACES)
def test_all_observations_are_taken(obs: str) -> None:
    trainer = trainer_of(any_demos(obs), *any_options(obs), "--bc.normalize-obs")
    assert all(math.isfinite(row.record()["train/loss"]) for row in trainer.rows())


@pytest.mark.parametrize("network", [[], ["--bc.memory=gru", "--bc.memory-size=6"]])
def test_each_epoch_has_each_sample_once(network: list[str]) -> None:
    trainer = trainer_of(cartpole_demos(8, steps=13), *network)
    source = source_of(trainer)
    seen: list[NDArray[Any]] = []
    update = trainer.algorithm.update

    def watching(batch: DatasetBatch, watch: Any) -> Any:
        seen.append(batch.obs.numpy().copy())
        return update(batch, watch)

    trainer.algorithm.update = watching  # type: ignore[method-assign]
    for _ in trainer.rows():
        pass
    arrays = source.arrays
    assert arrays is not None
    expected = np.sort(arrays.obs_at(arrays.steps_of(source.learned)), axis=0)
    found = np.concatenate(seen).reshape(3, -1, 4)
    for epoch in found:
        np.testing.assert_array_equal(np.sort(epoch, axis=0), expected)
    assert not np.array_equal(found[0], found[1])


def test_sequences_of_a_memory_are_those_of_the_episodes() -> None:
    demos = cartpole_demos(4, steps=9)
    demos[1] = Episode(
        *(part[:5] for part in (demos[1].observations, demos[1].actions)),
        demos[1].rewards[:4],
        *np.zeros((2, 4), np.bool_),
    )  # type: ignore[arg-type]
    demos[1].actions = demos[1].actions[:4]
    arrays = DemoArrays.of(demos, Actions(demos.action_space))
    batches = Batches(arrays, np.arange(4), DatasetSpec(1000, 1, whole_episodes=True), 0)
    batch = batches.packed(np.array([1, 2]))
    assert batch.batch_sizes is not None
    assert batch.batch_sizes.tolist() == [2] * 4 + [1] * 5
    np.testing.assert_array_equal(batch.obs[:8:2].numpy(), demos[2].observations[:4])
    np.testing.assert_array_equal(batch.obs[1:8:2].numpy(), demos[1].observations[:4])
    np.testing.assert_array_equal(batch.actions[8:].numpy(), demos[2].actions[4:])


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--bc.memory=lstm"],
        ["--bc.dropout=0.2"],
        ["--bc.patience=1", "--bc.normalize-obs", "--bc.label-smoothing=0.1", "--bc.entropy-coef=0.01"],
    ],
)
def test_a_resumed_run_is_the_same_to_the_bit(options: list[str]) -> None:
    demos = cartpole_demos(8, steps=13)
    whole = trainer_of(demos, *options)
    for _ in whole.rows():
        pass
    first = trainer_of(demos, *options)
    # In the middle of the second epoch.
    for _ in islice(first.rows(), 15 if "--bc.memory=lstm" not in options else 5):
        pass
    second = trainer_of(demos, *options)
    second.load_state_dict(first.state_dict())
    for _ in second.rows():
        pass
    assert first.steps < whole.steps
    assert differences(untimed_state(second.state_dict()), untimed_state(whole.state_dict())) == []


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["mse", "log_likelihood"])
def test_a_clone_of_a_linear_gaussian_expert_is_least_squares(loss: str) -> None:
    generator = np.random.default_rng(1)
    obs_space, action_space = Box(-3, 3, (3,), np.float32), Box(-1, 1, (2,), np.float32)
    weights, bias, deviations = generator.normal(size=(3, 2)) / 6, [0.1, -0.2], np.array([0.1, 0.3])
    episodes = []
    for _ in range(20):
        obs = generator.normal(size=(101, 3)).astype(np.float32)
        # Beyond the bounds: data sets have what the expert gave, not what the environment made of it.
        actions = (obs[:-1] @ weights + bias + deviations * generator.normal(size=(100, 2))).astype(
            np.float32
        )
        episodes.append(Episode(obs, actions, np.zeros(100), *np.zeros((2, 100), np.bool_)))
    demos = DemoSet(obs_space, action_space, episodes)
    options = [
        f"--bc.loss={loss}",
        "--bc.hidden=",
        "--bc.validation=0",
        "--bc.batch-size=2000",
        "--epochs=1500",
    ]
    # Adam at a constant rate goes round the least squares at a distance.
    rates = ["--bc.learning-rate=0.01", "--bc.final-learning-rate=0"]
    env = ["--env=test_bc:linear_env", *rates, "--run.row-seconds=1"]
    trainer = trainer_of(demos, *options, *env)
    for _ in trainer.rows():
        pass
    assert isinstance(trainer.algorithm, BC)
    rows = np.concatenate([episode.observations[:-1] for episode in demos]).astype(np.float64)
    design = np.column_stack([rows, np.ones(len(rows))])
    targets = np.concatenate([episode.actions for episode in demos])
    exact, *_ = np.linalg.lstsq(design, targets, rcond=None)
    policy = trainer.algorithm.policy
    with torch.no_grad():
        found = policy.outputs(torch.from_numpy(rows.astype(np.float32))).numpy()
    np.testing.assert_allclose(found, design @ exact, atol=1e-4)
    assert policy.log_std is not None
    residuals = np.sqrt(np.mean((targets - design @ exact) ** 2, axis=0))
    np.testing.assert_allclose(policy.log_std.detach().exp().numpy(), residuals, rtol=0.02)


class LinearEnv(AnySpaces):
    pass


def linear_env() -> gymnasium.Env[Any, Any]:
    return LinearEnv(Box(-3, 3, (3,), np.float32), Box(-1, 1, (2,), np.float32))


def test_statistics_of_observations_are_those_of_the_training_split() -> None:
    trainer = trainer_of(cartpole_demos(8, steps=30), "--bc.normalize-obs", "--bc.validation=0.25")
    source = source_of(trainer)
    next(trainer.rows())
    arrays = source.arrays
    assert arrays is not None and isinstance(trainer.algorithm, BC)
    rows = arrays.obs_at(arrays.steps_of(source.learned)).astype(np.float64)
    norm = trainer.algorithm.policy.obs_norm
    assert norm is not None and (len(source.learned), len(source.validated)) == (6, 2)
    np.testing.assert_allclose(norm.mean.numpy(), rows.mean(0))
    np.testing.assert_allclose(norm.var.numpy(), rows.var(0))


def test_patience_stops_a_run_and_keeps_the_best_policy() -> None:
    # Actions by chance: what is learned from the others does not help.
    demos = any_demos(episodes=40)
    trainer = trainer_of(
        demos,
        *any_options(),
        "--epochs=200",
        "--bc.patience=3",
        "--bc.learning-rate=0.02",
        "--bc.validation=0.5",
    )
    rows = [row.record() for row in trainer.rows()]
    source = source_of(trainer)
    assert trainer.stopped_by == "validation_loss"
    assert trainer.rounds[0] < 200
    losses = [row["dataset/validation_loss"] for row in rows if "dataset/validation_loss" in row]
    batches = source.batches.in_order(source.validated)
    assert isinstance(trainer.algorithm, BC)
    assert trainer.algorithm.validate(batches)["loss"] == pytest.approx(min(losses))


def test_the_best_share_of_the_episodes_is_learned_from() -> None:
    returns = np.array([3.0, 9.0, 1.0, 9.0, 5.0, 9.0])
    assert best_episodes(returns, 0.5).tolist() == [1, 3, 5]
    assert best_episodes(returns, 0.3).tolist() == [1, 3]
    assert best_episodes(returns, 1.0).tolist() == [0, 1, 2, 3, 4, 5]
    assert best_episodes(returns, 0.01).tolist() == [1]
    trainer = trainer_of(any_demos(), *any_options(), "--demos.top=0.5")
    source = source_of(trainer)
    used = np.concatenate([source.learned, source.validated])
    rest = np.setdiff1d(np.arange(12), used)
    returns = source.demos.returns
    assert len(used) == 6 and returns[used].min() >= returns[rest].max()


def test_a_split_parts_episodes() -> None:
    learned, validated = split_episodes(np.arange(3, 23), 0.1, seed=0)
    assert len(validated) == 2
    assert sorted([*learned, *validated]) == list(range(3, 23))
    assert split_episodes(np.arange(1), 0.5, seed=0)[0].tolist() == [0]


def test_the_experts_own_actions_are_learned_where_noise_was_played() -> None:
    demos = cartpole_demos(2, steps=20)
    for episode in demos:
        episode.expert_actions = 1 - episode.actions
    takes = Actions(demos.action_space)
    own = DemoArrays.of(demos, takes, own_actions=True)
    taken = DemoArrays.of(demos, takes)
    steps = own.steps_of()
    assert (own.actions[steps] == 1 - taken.actions[steps]).all()


def test_a_data_set_of_another_environment_is_refused() -> None:
    demos = cartpole_demos(2, steps=5)
    with pytest.raises(TrainError, match=r"observations .* it was recorded in another environment") as error:
        trainer_of(demos, "--env=Acrobot-v1")
    assert "\n" not in str(error.value)
    with pytest.raises(TrainError, match=r"actions .* it was recorded in another environment"):
        trainer_of(DemoSet(demos.obs_space, gymnasium.spaces.Discrete(3), demos))


def test_no_data_set_is_refused() -> None:
    with pytest.raises(TrainError, match=r"--demos: name the folder"):
        find("gym").make_trainer(settings_of("gym", *SMALL))
    with pytest.raises(TrainError, match="has no episodes"):
        trainer_of(DemoSet(*_cartpole_spaces(), []))


def _cartpole_spaces() -> Any:
    env = gymnasium.make("CartPole-v1")
    return env.observation_space, env.action_space


def test_nan_is_refused_with_its_episode() -> None:
    demos = cartpole_demos(4, steps=9)
    demos[2].observations[5, 1] = math.nan
    with pytest.raises(
        TrainError, match="episode 2: expected finite observations, got NaN or infinity at step 5"
    ):
        next(trainer_of(demos).rows())
    demos = cartpole_demos(4, steps=9)
    demos[1].actions[3] = 7
    with pytest.raises(TrainError, match="episode 1: expected actions of"):
        next(trainer_of(demos).rows())


def test_a_bad_number_on_disk_is_named_with_its_file(tmp_path: Path) -> None:
    demos = cartpole_demos(6, steps=40)
    demos[4].observations[5, 1] = math.inf
    on_disk = written(demos, tmp_path / "demos", "CartPole-v1")
    [(shard, _)] = on_disk[4:5].parts()
    file = shard.path.name
    assert file != "shard-00000.arrow"
    with pytest.raises(TrainError) as caught:
        next(trainer_of(on_disk).rows())
    assert str(caught.value) == (
        f"{tmp_path / 'demos' / file}, episode 4: expected finite observations, got NaN or infinity at step 5; leave"
        " the episode out, or record it again"
    )


@pytest.mark.parametrize("squash", [False, True])
def test_actions_at_the_bounds_have_finite_likelihoods(squash: bool) -> None:
    env = gymnasium.make("Pendulum-v1")
    demos = played(env, lambda obs: -2 * np.sign(obs[2:]), 4, steps=30)
    assert all((np.abs(episode.actions) == 2).all() for episode in demos)
    options = ["--bc.squash-actions"] if squash else []
    trainer = trainer_of(demos, "--env=Pendulum-v1", "--bc.loss=log_likelihood", *options)
    for row in trainer.rows():
        record = row.record()
        assert all(math.isfinite(record[name]) for name in ("train/loss", "train/mean_square_error"))
    state = trainer.policy_checkpoint()["policy"]
    assert all(torch.isfinite(each).all() for each in state["weights"].values())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bc.loss=mse"], "loss mse is for continuous actions"),
        (["--bc.patience=2", "--bc.validation=0"], "patience counts epochs by their validation loss"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(options: list[str], said: str) -> None:
    with pytest.raises(TrainError, match=said):
        trainer_of(cartpole_demos(2, steps=5), *options)


def test_a_run_with_another_data_set_does_not_resume() -> None:
    first = trainer_of(cartpole_demos(8, steps=13))
    next(first.rows())
    second = trainer_of(cartpole_demos(8, steps=14))
    with pytest.raises(TrainError, match="other episodes"):
        second.load_state_dict(first.state_dict())


@pytest.mark.slow
def test_a_clone_of_an_expert_balances_the_pole(tmp_path: Path) -> None:
    model = fastrl.BC(
        "CartPole-v1",
        demos=cartpole_demos(10),
        epochs=30,
        learning_rate=5e-3,
        seed=0,
        device="cpu",
        run__eval_freq=15,
        run__eval_episodes=5,
    )
    model.learn(run_dir=tmp_path / "clone")
    assert model.summary is not None and model.summary.unit == "samples"
    assert model.evaluate(10)[0] >= 475
    evaluations = [row["eval/mean_reward"] for row in model.metrics if "eval/mean_reward" in row]
    assert len(evaluations) == 2
    action = fastrl.load_policy(tmp_path / "clone").act(np.array([0, 0, 0.1, 0.1], np.float32))
    assert action == model.predict(np.array([0, 0, 0.1, 0.1], np.float32))[0] == 1


@pytest.mark.parametrize("options", [{}, {"normalize_obs": True}, {"hidden": (16,)}])
def test_ppo_starts_with_the_weights_of_a_clone(tmp_path: Path, options: dict[str, Any]) -> None:
    clone = fastrl.BC(
        "CartPole-v1", demos=cartpole_demos(4, steps=50), epochs=2, run__eval_episodes=0, **options
    )
    clone.learn(run_dir=tmp_path / "clone")
    ppo = fastrl.PPO(
        "CartPole-v1",
        num_envs=2,
        num_steps=16,
        run__init_from=str(tmp_path / "clone"),
        critic_warmup=64,
        **options,
    )
    ppo.learn(32)
    observation = np.array([[0.1, -0.3, 0.05, 0.2]], np.float32)
    mine, theirs = (model.trainer.algorithm.policy for model in (ppo, clone))  # type: ignore[attr-defined]
    with torch.no_grad():
        # The critic alone has learned.
        torch.testing.assert_close(
            mine.outputs(torch.from_numpy(observation)), theirs.outputs(torch.from_numpy(observation))
        )


@pytest.mark.parametrize("is_mapped", [False, True])
def test_data_sets_on_disk_and_in_memory_are_learned_from_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_mapped: bool
) -> None:
    monkeypatch.setattr(demo_arrays, "MAPPED_BYTES", 0 if is_mapped else 1 << 30)
    demos = cartpole_demos(9, steps=40)
    on_disk = written(demos, tmp_path / "demos", "CartPole-v1")
    assert len({shard.path for shard, _ in on_disk.parts()}) > 2
    states = []
    for given in (demos, on_disk):
        trainer = trainer_of(given)
        for _ in trainer.rows():
            pass
        states.append(trainer.state_dict())
    assert differences(*(untimed_state(state) for state in states)) == []
    arrays = source_of(trainer).arrays
    assert arrays is not None and arrays.is_mapped == is_mapped


def test_runs_from_the_command_line_learn_from_a_folder_and_resume(tmp_path: Path) -> None:
    written(cartpole_demos(6, steps=40), tmp_path / "demos", "CartPole-v1")
    options = ["--bc.hidden=8", "--epochs=2", "--run.eval-episodes=2", f"--run-dir={tmp_path / 'run'}"]
    assert main(["train", "CartPole-v1", "--algo=bc", f"--demos={tmp_path / 'demos'}", *options]) == 0
    assert main(["train", "--resume", str(tmp_path / "run"), "--epochs=4"]) == 0
    assert fastrl.load(tmp_path / "run").steps == 4 * 200
    assert main(["eval", str(tmp_path / "run"), "--episodes=2"]) == 0


def test_a_clone_acts_without_its_data_set(tmp_path: Path) -> None:
    run, folder, moved = tmp_path / "run", tmp_path / "demos", tmp_path / "moved"
    written(cartpole_demos(4, steps=40), folder, "CartPole-v1")
    options = {"epochs": 2, "hidden": (8,), "run__eval_episodes": 0}
    clone = fastrl.BC("CartPole-v1", demos=folder, **options).learn(run_dir=run)
    folder.rename(moved)
    model = fastrl.load(run)
    observation = np.array([0, 0, 0.1, 0.1], np.float32)
    assert model.predict(observation) == clone.predict(observation)
    assert model.evaluate(3) == clone.evaluate(3)
    assert main(["eval", str(run), "--episodes=2"]) == 0
    with pytest.raises(ConfigError, match="goal of the settings, 240 samples, is reached"):
        model.learn()
    model.save(tmp_path / "copy.safetensors")
    assert fastrl.load(tmp_path / "copy.safetensors").steps == 240

    with pytest.raises(UserError, match=f"--demos: {folder} has no data set"):
        model.learn(100)
    assert main(["train", "--resume", str(run), "--epochs=3"]) != 0
    assert main(["train", "--resume", str(run), "--epochs=3", f"--demos={moved}"]) == 0
    assert fastrl.load(run, demos=moved).steps == 3 * 120
    written(cartpole_demos(4, steps=30), tmp_path / "other", "CartPole-v1")
    with pytest.raises(TrainError, match="other episodes"):
        fastrl.load(run, demos=tmp_path / "other").learn(100)


def test_a_model_takes_a_data_set_in_place_of_its_environment(tmp_path: Path) -> None:
    on_disk = written(cartpole_demos(4, steps=20), tmp_path / "demos", "CartPole-v1")
    model = fastrl.BC(on_disk, epochs=1, run__eval_episodes=0).learn()
    assert model.env_spec.id == "CartPole-v1"
    with pytest.raises(ConfigError, match="does not name the environment"):
        fastrl.BC(cartpole_demos(2, steps=5))


def test_a_folder_of_another_environment_is_refused(tmp_path: Path) -> None:
    on_disk = written(cartpole_demos(2, steps=5), tmp_path / "demos", "CartPole-v1")
    with pytest.raises(TrainError, match="recorded in CartPole-v1, not in CartPole-v0"):
        trainer_of(on_disk, "--env=CartPole-v0")


def test_a_defender_of_cage2_is_cloned() -> None:
    env = gymnasium.make("fastrl/Cage2-v0", actions=None, memory="none")
    demos = played(env, lambda obs: int(obs.sum()) % 5, 3, steps=20)
    options = ["--env.actions=none", "--env.memory=none", "--env.num-envs=2"]
    settings = settings_of("cage2", *SMALL, "--run.row-seconds=1", *options)
    trainer = find("cage2").with_demos(demos).make_trainer(settings)
    rows = [row.record() for row in trainer.rows()]
    assert math.isfinite(rows[-1]["train/accuracy"])
    # It obeys the masks that PPO obeys in these games, unless its settings say otherwise.
    for more, needed in (([], True), (["--no-bc.action-masks"], False)):
        settings = settings_of("cage2", *SMALL, *options, *more)
        state = find("cage2").with_demos(demos).make_trainer(settings).policy_checkpoint()
        assert Policy(state).needs_action_mask == needed
