"""Several ranks learn what one learns, to the bit; they resume on other numbers of ranks."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from demo_sets import cartpole_expert, played
from rank_runs import RankProcesses
from small_runs import settings_of

import fastrl
from fastrl.algorithms.ppo import PPO
from fastrl.collectors.running import num_running
from fastrl.runs.checkpoint import checksum, load_checkpoint, save_checkpoint
from fastrl.runs.errors import TrainError
from fastrl.tasks import find
from fastrl.training.trainer import Trainer
from fastrl.utils.errors import UserError
from fastrl.utils.ranks import ALONE, Ranks, RanksError, Shard

_COMMON = ["--run.eval-episodes=0", "--run.torch-threads=1", "--device=cpu", "--run.row-seconds=0"]
_CARTPOLE = ["--env=CartPole-v1", "--collector=sequential", "--num-envs=5"]
_PENDULUM = ["--env=Pendulum-v1", *_CARTPOLE[1:]]
_TOY = ["--env=space_cases:AnySpaces", *_CARTPOLE[1:]]
_TEAM = ["--vehicles=3", "--num-envs=4", "--env.num-threads=1", "--total-timesteps=192"]
_REPLAY = ["--replay.learning-starts=40", "--replay.train-freq=4", "--total-timesteps=80"]
_MEMORY = ["memory=gru", "memory-size=8"]


def _small(algorithm: str, *options: str) -> list[str]:
    """Options of an algorithm with a small network; those that are given lack its name."""
    named = (f"--{algorithm}.{option}" for option in ("hidden=8", *options))
    return [f"--algo={algorithm}", *named]


def _ppo(*options: str) -> list[str]:
    sizes = ("num-steps=32", "minibatch-size=54", "num-epochs=2")
    return [*_small("ppo", *sizes, *options), "--total-timesteps=480"]


# Of each run the task and its options. Five environments and 160 samples leave shards and minibatches of unequal size.
RUNS = {
    "ppo": ("gym", *_CARTPOLE, *_ppo("normalize-obs", "normalize-returns")),
    "ppo of minibatch advantages and a KL stop": (
        "gym",
        *_CARTPOLE,
        *_ppo("normalize-advantages=minibatch", "target-kl=0.00055", "num-epochs=8", "init-kl-coef=0.1"),
    ),
    "ppo with an encoder of rows": (
        "gym",
        "--env=fastrl/roundabout-v1",
        *_CARTPOLE[1:],
        *_ppo("encoder=rows"),
        "--no-ppo.normalize-obs",
    ),
    # Minibatches of 3 samples at most leave a shard empty.
    "ppo of tiny minibatches, with intrinsic rewards": (
        "gym",
        *_CARTPOLE,
        *_ppo("minibatch-size=3", "num-steps=4"),
        "--total-timesteps=20",
        "--intrinsic=rnd",
        "--intrinsic.predictor-hidden=8",
    ),
    "ppo with masks": (
        "gym",
        *_TOY,
        *("--env.options", "masks=true", "actions=multi-discrete"),
        *_ppo("action-masks"),
    ),
    "ppo with a memory": ("gym", *_CARTPOLE, *_ppo(*_MEMORY)),
    "impala": ("gym", *_CARTPOLE, *_small("impala", "normalize-obs"), "--total-timesteps=400"),
    "impala with a memory": (
        "gym",
        *_CARTPOLE,
        *_small("impala", *_MEMORY, "burn-in=4"),
        "--total-timesteps=400",
    ),
    "dqn": (
        "gym",
        *_CARTPOLE,
        *_small("dqn", "batch-size=30", "prioritized", "noisy", "accumulate=2"),
        *_REPLAY,
    ),
    # Without layer norm it has a compiled actor, whose actions do not depend on how many environments a rank steps.
    "pqn": (
        "gym",
        *_CARTPOLE,
        *_small("pqn", "num-steps=4", "minibatch-size=3", "normalize-obs"),
        "--no-pqn.layer-norm",
        "--total-timesteps=40",
    ),
    "pqn with a memory": (
        "gym",
        *_CARTPOLE,
        *_small("pqn", *_MEMORY),
        "--no-pqn.layer-norm",
        "--total-timesteps=400",
    ),
    "sac": ("gym", *_PENDULUM, *_small("sac", "batch-size=30", "critics=3"), *_REPLAY),
    "td3": ("gym", *_PENDULUM, *_small("td3", "batch-size=30"), *_REPLAY),
    "iql": ("gym", *_PENDULUM, *_small("iql", "batch-size=30"), *_REPLAY),
    "bc": ("gym", "--env=CartPole-v1", *_small("bc", "batch-size=30"), "--epochs=2"),
    "mabc": ("pettingzoo", "--env=parallel_toys:Differing", *_small("mabc", "batch-size=30"), "--epochs=2"),
    "bc with a memory": (
        "gym",
        "--env=CartPole-v1",
        *_small("bc", "batch-size=90", *_MEMORY),
        "--epochs=2",
    ),
    "mappo": (
        "traffic",
        *_TEAM,
        *_small("mappo", "num-steps=16", "minibatch-size=50", "target-kl=0.001"),
    ),
    "ippo with masks": (
        "traffic",
        "--env=fastrl/roundabout-v0",
        *("--vehicles=3", "--num-envs=4", "--total-timesteps=96"),
        *_small("ippo", "num-steps=8", "minibatch-size=50", "action-masks"),
    ),
    "ippo with a memory": (
        "traffic",
        *_TEAM,
        *_small("ippo", "num-steps=16", "minibatch-size=50", *_MEMORY),
    ),
    "ippo": ("traffic", *_TEAM, *_small("ippo", "num-steps=16", "minibatch-size=50")),
}

MEMORIES = [name for name in RUNS if name.endswith("memory")]


def trainer_of(name: str, ranks: Ranks, *options: str) -> Trainer:
    task_name, *own = RUNS[name]
    task = find(task_name).with_ranks(ranks)
    if "--algo=bc" in own:
        task = task.with_demos(played(gymnasium.make("CartPole-v1"), cartpole_expert, 6, steps=40))
    if "--algo=mabc" in own:
        with tempfile.TemporaryDirectory() as folder:
            recorded = fastrl.demos.record(own[0].partition("=")[2], "random", 9, folder, n_workers=1)
        task = task.with_demos(recorded)
    trainer = task.make_trainer(settings_of(task_name, *own, *_COMMON, *options))
    assert isinstance(trainer, Trainer)
    return trainer


def learned(trainer: Trainer) -> str:
    """A checksum of all that has been learned: parameters, optimisers, generators."""
    trainer.algorithm.metrics()
    return checksum(trainer.algorithm.state_dict())


def train_all(ranks: Ranks, *options: str) -> dict[str, tuple[int, str]]:
    """Updates and checksums of the runs, by name, but for that whose actions PyTorch chooses: its last bits depend on
    how many environments a rank steps."""
    found = {}
    for name in [name for name in RUNS if name != "ppo with an encoder of rows"]:
        trainer = trainer_of(name, ranks, *options)
        for _ in trainer.rows():
            pass
        found[name] = trainer.iteration, learned(trainer)
    return found


def save_first_half(ranks: Ranks, name: str, path: Path) -> None:
    """Saves the state of a run after its first update."""
    trainer = trainer_of(name, ranks, "--run.shards=4")
    rows = trainer.rows()
    next(rows)
    state = trainer.state_dict()
    if ranks.is_first:
        save_checkpoint(path, state)


@pytest.mark.slow
def test_any_number_of_ranks_learns_the_same_to_the_bit(on_ranks: RankProcesses) -> None:
    """One in this process, and four with a shard each; the test below resumes on two."""
    [expected] = on_ranks(1, train_all, "--run.shards=4")
    assert all(iterations for iterations, _ in expected.values())
    assert on_ranks(4, train_all, "--run.shards=4") == [expected] * 4


@pytest.mark.slow
def test_a_run_resumes_on_another_number_of_ranks(on_ranks: RankProcesses, tmp_path: Path) -> None:
    straight = trainer_of("ppo with a memory", ALONE, "--run.shards=4")
    for _ in straight.rows():
        pass
    on_ranks(2, save_first_half, "ppo with a memory", tmp_path / "half")
    state = load_checkpoint(tmp_path / "half")
    # It has the episodes of all ranks' environments.
    assert num_running(state["source"]["collector"]) == 5
    resumed = trainer_of("ppo with a memory", ALONE, "--run.shards=4")
    resumed.load_state_dict(state)
    assert resumed.iteration == 1
    for _ in resumed.rows():
        pass
    assert learned(resumed) == learned(straight)


@pytest.mark.parametrize(
    "name",
    ["ppo", "ppo with an encoder of rows", "impala", "dqn", "pqn", "sac", "bc", "mabc", "mappo", *MEMORIES],
)
def test_an_update_in_shards_is_that_of_whole_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Compiled steps of whole batches could be several in one call.
    monkeypatch.setattr("fastrl.algorithms.batch_arrays.AT_ONCE", 1)
    weights = []
    for options in ([], ["--run.shards=4"]):
        trainer = trainer_of(name, ALONE, *options)
        for _ in trainer.rows():
            if trainer.iteration:
                break
        assert trainer.iteration == 1
        weights.append(dict(tensors_of(trainer.algorithm.policy_state())))
    assert weights[0].keys() == weights[1].keys() != set()
    for key, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][key], tensor, rtol=0, atol=1e-6, msg=key)


def tensors_of(state: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of nested dicts."""
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            yield f"{name}/{key}", value
        elif isinstance(value, dict):
            yield from tensors_of(value, f"{name}/{key}")


def test_an_update_stops_by_the_divergence_of_all_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    target = 0.00055
    trainer = trainer_of("ppo of minibatch advantages and a KL stop", ALONE, "--run.shards=4")
    of_shards: list[float] = []
    differentiate = PPO.differentiate

    def noting(ppo: PPO, *arguments: Any) -> torch.Tensor:
        numbers = differentiate(ppo, *arguments)
        of_shards.append(numbers[3].item())
        return numbers

    monkeypatch.setattr(PPO, "differentiate", noting)
    for _ in trainer.rows():
        break
    steps = [of_shards[i : i + 4] for i in range(0, len(of_shards), 4)]
    assert 1 < len(steps) < 3 * 8
    # Shards are of 13 and 14 samples.
    assert all(sum(step) / 4 < 1.1 * target for step in steps[:-1])
    assert sum(steps[-1]) / 4 > 0.9 * target
    assert any(max(step) > target for step in steps[:-1])


def test_gradients_of_shards_are_added_in_order() -> None:
    ranks = ALONE.with_shards(4)
    gradient, seen = torch.tensor([1.0, 2.0]), list[Shard]()

    def learn(shard: Shard) -> torch.Tensor | None:
        seen.append(shard)
        if shard.rows.start == shard.rows.stop:
            return None
        gradient.add_(torch.tensor([10.0 ** (8 * shard.number % 3), 0.5]))
        return torch.full((1,), float(shard.number))

    assert ranks.reduce(gradient, 3, 1, learn).tolist() == [6.0]
    assert [(shard.rows.start, shard.rows.stop) for shard in seen] == [(0, 0), (0, 1), (1, 2), (2, 3)]
    assert gradient.tolist() == [1.0 + 100 + 10 + 1, 3.5]


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("ppo", ["--episodes-per-update=4"], "--ranks 2: whole episodes are not divided among ranks"),
        ("ppo", ["--num-envs=1"], "--ranks 2: 1 environments are fewer than ranks"),
        ("ppo", ["--run.shards=3"], "run.shards 3 cannot be shared out evenly among 2 ranks: .* 1, 3"),
        ("ppo", ["--ppo.update-backend=compiled"], "update_backend compiled is for whole minibatches"),
        ("dqn", ["--dqn.batch-norm"], "BatchNorm takes statistics of whole batches"),
        ("dqn", ["--replay.overlap"], "set replay.overlap to false"),
        ("sac", ["--replay.path=replay"], "leave out replay.path"),
        ("mappo", ["--mappo.dropout=0.1"], "dropout is drawn for whole minibatches"),
    ],
)
def test_what_ranks_cannot_do_is_refused_in_a_line(name: str, options: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        trainer_of(name, Ranks(0, 2), *options)
    assert "\n" not in str(caught.value)


def test_other_algorithms_are_refused() -> None:
    with pytest.raises(TrainError, match="learns from whole batches, without --ranks"):
        find("gym").make_trainer(
            settings_of("gym", *_CARTPOLE, "--algo=toy_algorithm:Toy", *_COMMON, "--run.shards=2")
        )


def test_the_number_of_shards_is_settled_once() -> None:
    settings = settings_of("gym", *_CARTPOLE)
    assert Ranks(1, 4).settle(settings).run.shards == 4
    assert ALONE.settle(settings) is settings
    fixed = settings_of("gym", *_CARTPOLE, "--run.shards=6")
    assert Ranks(1, 2).settle(fixed) is fixed
    with pytest.raises(RanksError, match="choose a number of ranks that divides it, 1, 2, 3, 6"):
        Ranks(0, 4).settle(fixed)
